"""Experts have modules of their own while a model is worked on, and are stored as they were."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

import slimformer
from calibrated import calibrated, outputs, recipe, stock
from families import LENGTH, tiny, tiny_batches
from slimformer.checkpoint.reload import checksums
from slimformer.checkpoint.save import save
from slimformer.errors import PlanDoesNotFit, UnknownArchitecture, UnknownMethod
from slimformer.models import describe
from slimformer.models.architecture import NEURONS, weight_of
from slimformer.models.experts import Experts, as_stored
from slimformer.models.sample_inputs import require_no_experts
from slimformer.plan.cost import block_cost
from slimformer.plan.plan import check_fits
from slimformer.recipe import recipe_of
from slimformer.rewrite.exact import Scope
from slimformer.rewrite.lossless import rewritten
from slimformer.steps import require_known_stacks

TYPES = ("mixtral", "qwen3_moe")
both = pytest.mark.parametrize("model_type", TYPES)
HEADS = recipe("uniform", attention="heads", ffn="neurons")


def avoid(n: int):
    """Send what would go to expert n to the first that is not chosen yet."""

    def after(_router, _args, output):
        scores, weights, chosen = output
        instead = torch.tensor([next(e for e in range(4) if e != n and e not in row) for row in chosen.tolist()])
        return scores, weights, torch.where(chosen == n, instead[:, None], chosen)

    return after


@both
def test_a_model_taken_apart_does_the_same_and_is_stored_the_same(model_type):
    model = tiny(model_type)
    (batch,) = tiny_batches(model, 1)
    before, sums = outputs(model, batch), checksums(model)
    describe(model)
    assert sum(isinstance(module, Experts) for module in model.modules()) == 3
    torch.testing.assert_close(outputs(model, batch), before)
    assert checksums(model) == sums
    with as_stored(model):
        assert torch.equal(outputs(model, batch), before)
    other = tiny(model_type, seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(outputs(other, batch), before)
    describe(other)
    other.load_state_dict(tiny(model_type, seed=2).state_dict())
    assert checksums(other) == checksums(tiny(model_type, seed=2))


@both
def test_readers_see_every_token_of_theirs_with_the_weight_it_counts(model_type):
    """Σ over experts of what they write is what the layer writes: no token is dropped, none counted twice."""
    found = stock(model_type)
    tokens = sum(batch.tokens for batch in found.data["fit"])
    for block in found.architecture.blocks:
        assert len(block.neurons) == 4
        for site in block.neurons:
            moments = found.blocks[site.block].sites[site.name]["fit"]
            assert moments.count == tokens and float(moments.gram.diagonal().sum()) > 0


@both
def test_macs_count_active_experts_and_parameters_all(model_type):
    model = tiny(model_type)
    architecture = describe(model)
    cost, width = block_cost(architecture, LENGTH), 32
    attention = 2 * width * 32 + 2 * width * 16 + 2 * LENGTH * 32
    assert cost.macs == 3 * (attention + 2 * (3 * 48 * width) + 4 * width)
    assert cost.params == sum(
        p.numel() for name, p in model.named_parameters() if "layers." in name and "norm" not in name
    )


@both
@pytest.mark.parametrize("format", ["plain", "ragged"])
def test_cut_experts_are_of_one_width_in_a_block_and_come_back_in_a_fresh_process(model_type, format, tmp_path):
    found, how = stock(model_type), recipe("uniform", ridge=1e-3, attention="heads", ffn="neurons", multiple_of=4)
    plan = found.plan(0.6, how, format=format)
    small = found.apply(plan, how).float()
    sizes = [{site.units for site in block.neurons} for block in describe(small).blocks]
    assert all(len(each) == 1 for each in sizes) and max(max(each) for each in sizes) < 48
    assert max(site.units for site in describe(small).heads) < 4
    assert hasattr(small.config, "slimformer") == (format == "ragged")
    save(small, tmp_path / "small", verify=True)


@both
def test_a_dead_expert_is_cut_like_the_others_and_gets_no_garbage(model_type):
    model = tiny(model_type)
    for block in model.base_model.layers:
        block.mlp.gate.register_forward_hook(avoid(3))
    found = calibrated(model)
    site = next(s for s in found.architecture if s.expert and s.expert.number == 3)
    assert float(found.blocks[site.block].sites[site.name]["fit"].gram.abs().max()) == 0
    plan = found.plan(0.6, HEADS)
    small = found.apply(plan, HEADS)
    assert describe(small)[site.name].units < 48
    for name, parameter in small.named_parameters():
        assert bool(parameter.isfinite().all()), name
    before, after = (weight_of(m.get_submodule(site.reader)) for m in (model, small))
    columns = {tuple(column) for column in before.mT.tolist()}
    assert all(tuple(column) in columns for column in after.mT.tolist())


@both
def test_experts_of_a_block_that_differ_in_width_are_refused(model_type):
    found = stock(model_type)
    plan = found.plan(1.0, HEADS)
    site = next(site for site in found.architecture if site.kind == NEURONS)
    edits = tuple(dataclasses.replace(e, keep=8, groups=8) if e.site == site.name else e for e in plan.edits)
    with pytest.raises(PlanDoesNotFit, match="another expert of its block; all are stored in one tensor"):
        check_fits(dataclasses.replace(plan, edits=edits), found.architecture, "")


@pytest.mark.parametrize("step", ["depth", "replace", "quantize", "sparsify", "heal", "long_context"])
def test_steps_for_one_feed_forward_part_are_refused(step):
    steps = recipe_of("one", "one step", {step: {}}).steps
    with pytest.raises(UnknownMethod, match=f"the step {step} is for models with one feed-forward part in a block"):
        require_known_stacks(steps, describe(tiny("mixtral")))


def test_models_with_experts_in_some_blocks_alone_are_refused():
    with pytest.raises(UnknownArchitecture, match="some blocks have experts and some have none"):
        describe(tiny("qwen3_moe", mlp_only_layers=[1]))
    with pytest.raises(UnknownArchitecture, match="have experts, and export works on models with one"):
        require_no_experts(copy.copy(tiny("mixtral").config), "export")


@both
def test_copies_in_every_expert_are_found_from_weights_alone(model_type):
    """As many go of each as of the one with the fewest: here one has two copies, the others one."""
    model = tiny(model_type).double()
    for site in (site for site in describe(model) if site.expert):
        weight = model.get_submodule(site.writers[0].module).weight.data
        for unit in range(1, 3 if site.expert.number == 0 else 2):
            weight[[unit, 48 + unit]] = weight[[0, 48]]
    small, _ = rewritten(model, ("duplicate-neurons",), Scope(dtype=torch.float64, multiple_of=1), seq_len=LENGTH)
    assert {site.units for site in describe(small) if site.expert} == {47}
    (batch,) = tiny_batches(model, 1)
    torch.testing.assert_close(outputs(small, batch), outputs(model, batch))


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_a_model_that_is_given_is_left_as_it_is(model_type):
    model = tiny(model_type)
    ids = torch.randint(5, 64, (40, LENGTH), generator=torch.Generator().manual_seed(0))
    own, before = dict(model.named_parameters()), model(input_ids=ids).logits
    slimformer.inspect(model)
    slimformer.compress(model, ids, macs=0.7, recipe="fast", timing=False)
    now = dict(model.named_parameters())
    assert now.keys() == own.keys() and all(now[name] is own[name] for name in own)
    assert torch.equal(model(input_ids=ids).logits, before)

"""A few laws over every type of model that is known beyond those the laws of every method run over.

Nothing changes at full size; copied units go without a trace; a result comes back from its folder in a fresh process;
a decoder generates the same with and without a cache; what a family forbids is refused with its reason.
"""

import dataclasses
import functools

import pytest
import torch
from transformers import GenerationMixin

from calibrated import Calibrated, calibrated, outputs, recipe, stock
from families import CORE, LENGTH, SIZES, tiny, tiny_batches
from slimformer.calibrate.gather import gather
from slimformer.checkpoint.save import save
from slimformer.errors import (
    BudgetOutOfReach,
    CannotGroup,
    DataNotFound,
    DataUnreadable,
    PlanDoesNotFit,
    UnknownArchitecture,
    UnknownMethod,
)
from slimformer.linalg.moments import Moments
from slimformer.models import FAMILIES, describe
from slimformer.models.architecture import HEADS, own_rows, weight_of
from slimformer.models.hooks import listening
from slimformer.models.stream import sketch
from slimformer.models.walk import backward, record
from slimformer.plan import Budget
from slimformer.plan.cost import block_cost
from slimformer.plan.plan import check_fits
from slimformer.steps.depth import blocks_to_drop
from slimformer.steps.long_context import LongContext, require_groupable

TYPES = sorted(set(FAMILIES) & set(SIZES) - set(CORE))
every_type = pytest.mark.parametrize("model_type", TYPES)


def test_no_type_is_left_out():
    assert set(FAMILIES) <= set(SIZES)


@torch.no_grad()
def copy_half(model) -> None:
    """The second half of the units of every site that may shrink is the first half again."""
    for site in (site for site in describe(model) if not site.stays):
        for writer in site.writers:
            layer, rows = model.get_submodule(writer.module), own_rows(site, writer)
            half = len(rows) // 2
            for tensor in (weight_of(layer), layer.bias):
                if tensor is not None:
                    tensor[rows[half : 2 * half]] = tensor[rows[:half]]


@functools.cache
def copied(model_type: str) -> Calibrated:
    model = tiny(model_type).double()
    copy_half(model)
    return calibrated(model)


def off(found: Calibrated, small) -> float:
    batch = found.data["select"][0]
    return float((outputs(small, batch) - outputs(found.model, batch)).abs().max())


@every_type
def test_full_size_changes_nothing_and_copies_go_without_a_trace(model_type):
    found, how = copied(model_type), recipe(absorb_mean=True, attention="heads", ffn="neurons")
    whole = found.plan(1.0, how)
    assert off(found, found.apply(whole, how)) == 0
    halves = {site.name: site.units // 2 for site in found.architecture if not site.stays}
    assert halves
    groups = {site.name: halves[site.name] // site.group for site in found.architecture if not site.stays}
    edits = tuple(
        dataclasses.replace(edit, keep=halves[edit.site], groups=groups[edit.site]) if edit.site in halves else edit
        for edit in whole.edits
    )
    small = found.apply(dataclasses.replace(whole, edits=edits), how)
    assert {site.name: site.units for site in describe(small) if not site.stays} == halves
    assert off(found, small) <= 1e-8


@every_type
def test_a_smaller_model_comes_back_from_its_folder_and_generates(model_type, tmp_path):
    """By ranks and paths where they may be; `save` reloads in a process that knows nothing of this one."""
    found, how = stock(model_type), recipe("balanced", ridge=1e-3)
    plan = found.plan(0.75, how)
    check_fits(plan, found.architecture, "")
    small = found.apply(plan, how).float()
    assert plan.macs <= 0.75
    assert block_cost(describe(small), LENGTH) == block_cost(found.architecture, LENGTH, plan.sizes)
    save(small, tmp_path / "small", verify=True)
    if FAMILIES[model_type].causal:
        ids = tiny_batches(small, 1, rows=2)[0].inputs["input_ids"][:, :8]  # longer than some windows
        how_to = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
        cached, plain = (small.generate(ids, **how_to, use_cache=use) for use in (True, False))
        assert torch.equal(cached, plain)
    if FAMILIES[model_type].reads_pairs:
        batch = tiny_batches(small, 1, rows=2)[0]
        given = {name: x for name, x in batch.inputs.items() if name != "decoder_input_ids"}
        how_to = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
        cached, plain = (GenerationMixin.generate(small, **given, **how_to, use_cache=use) for use in (True, False))
        assert torch.equal(cached, plain)


@pytest.mark.parametrize("model_type", [t for t in TYPES if any(p.fixed for s in FAMILIES[t].stacks for p in s.parts)])
def test_what_a_family_forbids_is_refused_with_its_reason(model_type):
    found, how = stock(model_type), recipe(attention="heads", ffn="neurons")
    plan = found.plan(1.0, how)
    site = next(site for site in found.architecture if site.stays)
    edits = tuple(dataclasses.replace(e, keep=e.of // 2) if e.site == site.name else e for e in plan.edits)
    with pytest.raises(PlanDoesNotFit, match=site.stays):
        check_fits(dataclasses.replace(plan, edits=edits), found.architecture, "")


@pytest.mark.parametrize(("model_type", "reason"), [("gemma2", "capped"), ("gpt_neox", "head by head")])
def test_scores_that_are_more_than_products_are_not_cut_by_rank(model_type, reason):
    architecture = describe(tiny(model_type))
    assert all(block.ranked is None for block in architecture.blocks)
    assert all(reason in site.attention.no_ranks for site in architecture.sites if site.kind == HEADS)


def test_positions_on_a_part_of_each_head_leave_phi3_its_heads():
    rope = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}
    architecture = describe(tiny("phi3", rope_parameters=rope))
    assert all("a part of each head" in site.stays for site in architecture.sites if site.kind == HEADS)


@pytest.mark.parametrize(
    ("model_type", "sizes", "reason"),
    [
        ("deberta-v2", {"share_att_key": False}, "distances have projections of their own"),
        ("deberta-v2", {"conv_kernel_size": 3}, "a convolution stands between its first two blocks"),
        ("albert", {"num_hidden_groups": 3}, "several groups of blocks"),
        ("albert", {"inner_group_num": 2}, "several blocks, and one is known"),
        ("wav2vec2", {"add_adapter": True}, "an adapter of convolutions after the last block"),
        ("wav2vec2", {"adapter_attn_dim": 4, "do_stable_layer_norm": True}, "adapters for languages"),
        ("hubert", {"adapter_attn_dim": 4}, "adapters for languages"),
    ],
)
def test_models_a_family_does_not_know_are_refused_with_the_reason(model_type, sizes, reason):
    with pytest.raises(UnknownArchitecture, match=reason):
        describe(tiny(model_type, **sizes))


@pytest.mark.parametrize(
    ("model_type", "least"),
    [
        *((kind, 0.688) for kind in ("clip_text_model", "clip_vision_model", "wav2vec2", "hubert")),
        ("whisper", 0.792),
        *((kind, 1.0) for kind in ("clip", "siglip")),  # one config cannot say the sizes of two towers
        ("siglip_vision_model", 1.0),  # its head is as wide as the config says of all blocks
    ],
)
def test_plain_folders_of_towers_and_of_models_that_hear_keep_what_their_configs_cannot_say(model_type, least):
    """Heads, and the neurons of SigLIP: a budget that would need them is refused with the least there is."""
    found, how = stock(model_type), recipe("uniform", attention="heads", ffn="neurons")
    said = f"can say \\(plain\\): the minimum for this model is {least:.3f}; format='ragged' can go lower"
    with pytest.raises(BudgetOutOfReach, match=said):
        found.plan(0.5, how, format="plain")
    assert found.plan(0.6, how).macs <= 0.6


@pytest.mark.parametrize("model_type", ["clip_text_model", "clip_vision_model", "siglip_vision_model"])
def test_towers_say_why_their_attention_is_not_cut_by_rank(model_type):
    found, how = stock(model_type), recipe(attention="ranks", ffn="neurons")
    assert {site.attention.no_ranks for site in found.architecture.heads} == {
        "the attention of these blocks holds no scale under the usual name"
    }
    heads = found.architecture.heads[0]
    plan = found.plan(1.0, how)
    rank = dataclasses.replace(plan.edits[0], site=heads.rank_name("qk"), keep=4, of=8)
    with pytest.raises(PlanDoesNotFit, match=heads.rank_name("qk")):
        check_fits(dataclasses.replace(plan, edits=(*plan.edits, rank)), found.architecture, "")


@pytest.mark.parametrize(
    ("model_type", "data", "message"),
    [
        ("clip_vision_model", ["some words"] * 20, "a vision model is calibrated on images"),
        ("siglip_vision_model", torch.ones(8, 8, dtype=torch.long), "a vision model is calibrated on images"),
        ("clip_text_model", ["some words"] * 20, "no tokenizer with the model, so it cannot read text"),
    ],
)
def test_towers_refuse_what_the_other_tower_reads(model_type, data, message):
    model = tiny(model_type)
    with pytest.raises((DataNotFound, DataUnreadable), match=message):
        gather(data, model, None, describe(model))


def test_tables_by_distance_cost_what_their_products_do():
    """Every head multiplies its queries and keys with 2 × 4 rows each, which its projections make once per sequence."""
    with_tables = describe(tiny("deberta-v2"))
    without = describe(tiny("deberta-v2", relative_attention=False))
    rows, heads, width, hidden, blocks = 2 * 2 * 4, 4, 8, 32, 3
    more = block_cost(with_tables, LENGTH).macs - block_cost(without, LENGTH).macs
    assert more == blocks * heads * width * rows * (1 + hidden / LENGTH)


def test_a_block_that_is_run_many_times_costs_as_often_and_sees_every_run():
    """Moments are those of all runs; so is the metric, which is what single runs would add up to."""
    found = stock("albert")
    once = describe(tiny("albert", num_hidden_layers=1))
    costs = [block_cost(architecture, LENGTH) for architecture in (found.architecture, once)]
    assert costs[0].macs == 3 * costs[1].macs and costs[0].params == costs[1].params
    (block,) = found.blocks
    tokens = sum(batch.tokens for batch in found.data["fit"])
    assert {moments["fit"].count for moments in block.sites.values()} == {3 * tokens}
    site, seen = found.architecture.neurons[0], list[torch.Tensor]()
    with listening(found.model, inputs={site.reader: seen.append}), torch.no_grad():
        for batch in found.data["fit"]:
            found.model(**batch.inputs)
    masks = [batch.mask for batch in found.data["fit"] for _ in range(3)]
    whole = Moments.of(torch.cat([X[mask] for X, mask in zip(seen, masks, strict=True)]))
    torch.testing.assert_close(block.sites[site.name]["fit"].gram, whole.gram)


def test_the_gradient_of_a_shared_block_is_that_of_each_of_its_runs():
    """Two steps of a reader shared by three runs: what the runs say apart adds up to the gradient of its bias."""
    model = tiny("albert").double()
    architecture, batches = describe(model), tiny_batches(model, 1)
    (trail,) = record(model, architecture, batches, "test")
    site = architecture.neurons[0]
    trail.gradient = torch.ones_like(trail.states[-1])
    (visit,) = backward(model, architecture)
    found = visit.pull_back(trail, [site.reader])[site.reader]
    bias = model.get_submodule(site.reader).bias
    assert len(found) == 3 * len(trail.states[0])
    after = visit.through(trail.states[0], trail.stream.calls[0])
    (whole,) = torch.autograd.grad(after.sum(), [bias])
    torch.testing.assert_close(found.sum((0, 1)), whole)


def test_what_needs_blocks_of_their_own_refuses_one_that_is_run_many_times(tmp_path):
    model = tiny("albert")
    architecture = describe(model)
    assert architecture.blocks[0].ranked is None and architecture.n_layers == 3
    with pytest.raises(UnknownMethod, match="albert runs one block many times, and the step depth drops blocks"):
        blocks_to_drop(architecture, Budget(0.5))
    with pytest.raises(CannotGroup, match="one block is run many times"):
        require_groupable(model, architecture, LongContext(k=16))
    model.save_pretrained(tmp_path / "dense")
    with pytest.raises(UnknownArchitecture, match="one block is run many times, so there is nothing to walk on disk"):
        sketch(tmp_path / "dense")

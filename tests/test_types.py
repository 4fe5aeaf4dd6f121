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
from slimformer.checkpoint.save import save
from slimformer.errors import PlanDoesNotFit
from slimformer.models import FAMILIES, describe
from slimformer.models.architecture import HEADS, own_rows, weight_of
from slimformer.plan.cost import block_cost
from slimformer.plan.plan import check_fits

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

"""MACs are what a counter inside the running model counts; parameters are those that are there."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from families import LENGTH, MODEL_TYPES, heads, tiny, tiny_batches, tiny_plan, tiny_ragged
from slimformer.evaluate.assessment import footprint, foreseen
from slimformer.models import FAMILIES, describe
from slimformer.models.load import in_memory
from slimformer.plan.cost import Size, block_cost, full_size, outside_macs, site_cost

EVERY_HEAD = [(model_type, head) for model_type in MODEL_TYPES for head in heads(model_type)]


def sequence_length(model):
    family, config = FAMILIES[model.config.model_type], model.config
    return (config.image_size // config.patch_size) ** 2 + family.class_positions(config) if family.image else LENGTH


def counted(model) -> tuple[float, float]:
    """MACs per token of the blocks and of the rest, counted while the model runs with explicit matrix products."""
    model.set_attn_implementation("eager")
    rows = 1 if any(site.distances for site in describe(model)) else 4  # tables by distance are projected once a call
    batch = tiny_batches(model, 1, rows=rows)[0]
    if batch.mask is not None:
        batch.inputs["attention_mask"] = torch.ones_like(batch.inputs["attention_mask"])
    with FlopCounterMode(display=False, depth=99) as counter, torch.no_grad():
        model(**batch.inputs)
    macs = {name: sum(ops.values()) / 2 for name, ops in counter.get_flop_counts().items()}
    path = f"{type(model).__name__}.{describe(model).stacks[0].path}."
    blocks = sum(n for name, n in macs.items() if name.startswith(path) and "." not in name.removeprefix(path))
    angles = sum(n for name, n in macs.items() if name.endswith("rotary_emb"))  # a table, not a layer
    tokens = rows * sequence_length(model)
    return blocks / tokens, (macs["Global"] - blocks - angles) / tokens


@pytest.mark.parametrize(("model_type", "head"), EVERY_HEAD)
def test_macs_are_those_counted(model_type, head):
    model = tiny(model_type, head)
    blocks, outside = counted(model)
    architecture, T = describe(model), sequence_length(model)
    assert block_cost(architecture, T).macs == blocks
    assert outside_macs(model, architecture, T) == round(outside)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("compressed", [tiny_ragged, lambda model: tiny_plan(model, 0.7, format="plain")[1]])
def test_macs_of_compressed_models_are_those_counted(model_type, compressed):
    model = compressed(tiny(model_type))
    blocks, outside = counted(model)
    architecture, T = describe(model), sequence_length(model)
    assert block_cost(architecture, T).macs == blocks
    assert outside_macs(model, architecture, T) == round(outside)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_a_plan_says_is_what_the_model_costs(model_type):
    model = tiny(model_type)
    plan, small = tiny_plan(model, 0.5, recipe="balanced")
    dense, cut = block_cost(describe(model), LENGTH), block_cost(describe(small), LENGTH)
    assert block_cost(describe(model), LENGTH, plan.sizes) == cut
    before, after = foreseen(in_memory(model), plan)
    assert before == footprint(model, describe(model), plan.seq_len, model.dtype)
    assert after == footprint(small, describe(small), plan.seq_len, model.dtype)
    assert plan.macs == cut.macs / dense.macs
    assert plan.params == cut.params / dense.params


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_parameters_lost_are_parameters_gone(model_type):
    model = tiny(model_type)
    small = tiny_ragged(model)
    gone = block_cost(describe(model), LENGTH).params - block_cost(describe(small), LENGTH).params
    assert gone == model.num_parameters() - small.num_parameters() > 0


def test_projections_around_the_stream_are_counted_outside():
    model = tiny("opt", word_embed_proj_dim=16)
    assert outside_macs(model, describe(model), LENGTH) == counted(model)[1] == 2 * 32 * 16 + 16 * 64


@pytest.mark.parametrize("model_type", ["bert", "llama"])
def test_cost_is_additive_and_linear_in_the_units(model_type):
    architecture = describe(tiny(model_type))
    for site in architecture:
        full = full_size(site)
        half = Size(full.units // 2, full.groups // 2)
        assert 2 * site_cost(site, half, 7).macs == site_cost(site, full, 7).macs
        assert site_cost(site, Size(0, 0), 7).macs == site_cost(site, Size(0, 0), 7).params == 0
    total = sum((site_cost(site, full_size(site), 7).macs for site in architecture), 0)
    assert block_cost(architecture, 7).macs == total


def test_only_attention_depends_on_the_length():
    heads, neurons = describe(tiny("bert")).blocks[0].sites
    longer = [site_cost(s, full_size(s), 9).macs - site_cost(s, full_size(s), 8).macs for s in (heads, neurons)]
    assert longer == [2 * heads.width, 0]

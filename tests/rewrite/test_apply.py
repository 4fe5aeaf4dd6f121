"""A smaller copy that runs, whose config tells the truth, of a model that is left as it was."""

import copy
import dataclasses

import pytest
import torch

from calibrated import calibrated, outputs, recipe, stock
from dealing import dealt
from families import (
    HEADS,
    LENGTH,
    MODEL_TYPES,
    VOCABULARY,
    attention_part,
    block_sizes,
    feed_forward_part,
    tiny,
    tiny_batches,
    tiny_ragged,
)
from slimformer.errors import PlanDoesNotFit
from slimformer.models import FAMILIES, describe
from slimformer.plan.cost import Size, full_size
from slimformer.rewrite.apply import writer_rows

CAUSAL = [t for t in MODEL_TYPES if FAMILIES[t].causal]
ENCODERS = [t for t in MODEL_TYPES if not FAMILIES[t].causal and not FAMILIES[t].image]
BUDGETS = {"ragged": (0.85, 0.5, 0.3), "plain": (0.85, 0.7)}
CASES = [(format, budget) for format, budgets in BUDGETS.items() for budget in budgets]


def sizes_in(model):
    return {site.name: full_size(site) for site in describe(model)}


@pytest.mark.parametrize(("model_type", "case"), dealt(MODEL_TYPES, CASES))
def test_the_model_has_the_sizes_of_the_plan_and_runs(model_type, case):
    format, budget = case
    found, how = stock(model_type), recipe(ridge=1e-3)
    plan = found.plan(budget, how, format=format)
    small = found.apply(plan, how)
    assert sizes_in(small) == plan.sizes
    batch = found.data["select"][0]
    assert outputs(small, batch).shape == outputs(found.model, batch).shape
    assert torch.isfinite(outputs(small, batch)).all()
    assert small.num_parameters() < found.model.num_parameters()


@pytest.mark.parametrize(("model_type", "head"), HEADS)
def test_every_head_can_be_cut(model_type, head):
    found = stock(model_type, head)
    small = found.compress(0.5, recipe("uniform", ridge=1e-3))
    batch = found.data["select"][0]
    with torch.no_grad():
        assert type(small(**batch.inputs)) is type(found.model(**batch.inputs))


@pytest.mark.parametrize(("model_type", "format"), dealt(MODEL_TYPES, ["ragged", "plain"]))
def test_the_argument_is_left_untouched(model_type, format):
    found = stock(model_type)
    before = {name: tensor.clone() for name, tensor in found.model.state_dict().items()}
    config, sites = found.model.config.to_dict(), describe(found.model)
    small = found.compress(0.7, recipe(), format=format)
    after = found.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert found.model.config.to_dict() == config
    assert describe(found.model) == sites
    mine = {parameter.data_ptr() for parameter in found.model.parameters()}
    assert not mine & {parameter.data_ptr() for parameter in small.parameters()}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("format", ["ragged", "plain"])
def test_a_model_built_from_the_config_takes_the_weights_and_does_the_same(model_type, format):
    found = stock(model_type)
    small = found.compress(0.7, recipe(ridge=1e-3), format=format)
    built = type(small)(copy.deepcopy(small.config)).double().eval()
    built.load_state_dict(small.state_dict(), strict=True)
    batch = found.data["select"][0]
    assert torch.equal(outputs(built, batch), outputs(small, batch))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_ragged_configs_say_the_size_of_every_block(model_type):
    small = tiny_ragged(tiny(model_type))
    attention, ffn, sizes = attention_part(model_type), feed_forward_part(model_type), block_sizes(describe(small))
    assert len({tuple(size.values()) for size in sizes}) > 1
    for i, size in enumerate(sizes):
        said = small.config.per_layer_config[i]
        assert getattr(said, attention.heads_key) == size["heads"]
        assert getattr(said, ffn.neurons_key) == size["neurons"]
        if attention.kv_key:
            assert getattr(said, attention.kv_key) == size["kv_heads"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_plain_configs_use_the_stock_words_only(model_type):
    found = stock(model_type)
    small = found.compress(0.7, recipe(), format="plain")
    attention, ffn, size = attention_part(model_type), feed_forward_part(model_type), block_sizes(describe(small))[0]
    assert getattr(small.config, ffn.neurons_key) == size["neurons"]
    assert getattr(small.config, attention.heads_key) == size["heads"]
    said = small.config.to_dict()
    assert not {"slimformer", "auto_map"} & said.keys()
    assert not said.get("per_layer_config")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_attributes_that_follow_from_sizes_are_true(model_type):
    small = tiny_ragged(tiny(model_type))
    unit = describe(small).sites[0].unit
    for i, size in enumerate(block_sizes(describe(small))):
        block = small.get_submodule(describe(small).blocks[i].path)
        for derived in attention_part(model_type).derived:
            *parents, name = derived.path.split(".")
            factor = unit if derived.factor == "head_dim" else derived.factor
            expected = factor * size[derived.times] // (size[derived.over] if derived.over else 1)
            assert getattr(block.get_submodule(".".join(parents)), name) == expected


@pytest.mark.parametrize("model_type", CAUSAL)
def test_the_future_does_not_change_the_past(model_type):
    small = tiny_ragged(tiny(model_type).double())
    ids = torch.randint(5, VOCABULARY, (3, LENGTH))
    other = ids.clone()
    other[:, 9:] = torch.randint(5, VOCABULARY, (3, LENGTH - 9))
    with torch.no_grad():
        a, b = (small(input_ids=x).logits for x in (ids, other))
    assert torch.allclose(a[:, :9], b[:, :9], rtol=0, atol=1e-12)
    assert not torch.allclose(a[:, 9:], b[:, 9:])


@pytest.mark.parametrize("model_type", CAUSAL)
def test_the_cache_changes_nothing(model_type):
    small = tiny_ragged(tiny(model_type).double())
    ids = torch.randint(5, VOCABULARY, (2, 6))
    how = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    with_cache, without = (small.generate(ids, use_cache=use, **how) for use in (True, False))
    assert torch.equal(with_cache, without)
    assert with_cache.shape == (2, 14)


@pytest.mark.parametrize("model_type", ENCODERS)
def test_what_stands_in_the_padding_changes_nothing(model_type):
    small = tiny_ragged(tiny(model_type).double())
    batch = tiny_batches(small, 1)[0]
    ids = batch.inputs["input_ids"].where(batch.mask, torch.tensor(9))
    garbage = dataclasses.replace(batch, inputs={**batch.inputs, "input_ids": ids})
    assert torch.allclose(outputs(small, garbage), outputs(small, batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_was_compressed_can_be_compressed_again(model_type):
    once = calibrated(tiny_ragged(tiny(model_type), 0.8))
    how = recipe(ridge=1e-3)
    plan = once.plan(0.6, how)
    twice = once.apply(plan, how)
    assert sizes_in(twice) == plan.sizes
    assert all(twice.config.per_layer_config[i] for i in range(3))
    built = type(twice)(copy.deepcopy(twice.config)).double().eval()
    built.load_state_dict(twice.state_dict(), strict=True)
    batch = once.data["select"][0]
    assert torch.equal(outputs(built, batch), outputs(twice, batch))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_ragged_model_of_equal_blocks_can_become_plain(model_type):
    found, how = stock(model_type), recipe(ridge=1e-3)
    equal = found.plan(0.7, how, format="plain")
    ragged = found.apply(dataclasses.replace(equal, format="ragged"), how)
    assert ragged.config.slimformer
    again = calibrated(ragged)
    small = again.compress(1.0, how, format="plain")
    assert "slimformer" not in small.config.to_dict()
    built = type(small)(copy.deepcopy(small.config)).double().eval()
    built.load_state_dict(small.state_dict(), strict=True)
    batch = found.data["select"][0]
    assert torch.equal(outputs(built, batch), outputs(ragged, batch))


@pytest.mark.parametrize(
    ("model_type", "name"), dealt([t for t in MODEL_TYPES if feed_forward_part(t).may_be_empty], ["balanced", "stat"])
)
def test_a_block_without_neurons_runs_and_can_be_compressed_again(model_type, name):
    found, how = stock(model_type), recipe(name, ridge=1e-3, allow_empty=True)
    plan = found.plan(0.9, how)
    edits = tuple(
        dataclasses.replace(edit, keep=0, groups=0) if edit.site == "blocks.1.ffn.hidden" else edit
        for edit in plan.edits
    )
    small = found.apply(dataclasses.replace(plan, edits=edits), how)
    assert sizes_in(small)["blocks.1.ffn.hidden"] == Size(0, 0)
    assert torch.isfinite(outputs(small, found.data["select"][0])).all()
    again = calibrated(small)
    assert torch.isfinite(outputs(again.compress(0.8, how), again.data["select"][0])).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precision_is_kept(dtype):
    found, how = stock("bert"), recipe("uniform", ridge=1e-3)
    model = tiny("bert").to(dtype)
    cut = dataclasses.replace(found, model=model).apply(found.plan(0.5, how), how)
    assert {parameter.dtype for parameter in cut.parameters()} == {dtype}


@pytest.mark.parametrize("model_type", ["gpt2", "opt", "bert"])
def test_tied_weights_stay_tied(model_type):
    small = tiny_ragged(tiny(model_type))
    assert small.get_output_embeddings().weight is small.get_input_embeddings().weight


def test_moments_are_read_only_for_blocks_that_are_cut():
    found, how = stock("bert"), recipe()
    plan = found.plan(1.0, how)
    edits = tuple(
        dataclasses.replace(edit, keep=8, groups=8) if edit.site == "blocks.1.ffn.hidden" else edit
        for edit in plan.edits
    )
    asked, done = [], []
    from slimformer.rewrite.apply import apply

    apply(
        dataclasses.replace(plan, edits=edits), found.model, found.curves(how),
        lambda i: asked.append(i) or found.blocks[i], progress=done.append,
    )  # fmt: skip
    assert (asked, done) == ([1], [0, 1, 2])


def test_unequal_sizes_cannot_be_called_plain():
    found, how = stock("bert"), recipe()
    plan = found.plan(0.9, how, format="plain")
    edits = (*plan.edits[:-1], dataclasses.replace(plan.edits[-1], keep=8, groups=8))
    with pytest.raises(PlanDoesNotFit, match="plain format needs the same sizes in every block"):
        found.apply(dataclasses.replace(plan, edits=edits), how)


def test_rows_of_a_fused_matrix_are_those_of_its_three_parts():
    site = describe(tiny("gpt2"))["blocks.0.attn.heads"]
    rows = writer_rows(site, site.writers[0].module, [1, 3]).tolist()
    heads_1_and_3 = [*range(8, 16), *range(24, 32)]
    assert rows == [part * 32 + row for part in range(3) for row in heads_1_and_3]


def test_rows_of_shared_keys_are_those_of_the_groups_kept():
    site = describe(tiny("llama"))["blocks.0.attn.heads"]
    query, key, _ = (writer.module for writer in site.writers)
    assert writer_rows(site, query, [1, 2]).tolist() == [*range(8, 16), *range(16, 24)]
    assert writer_rows(site, key, [1, 2]).tolist() == list(range(16))
    assert writer_rows(site, key, [2]).tolist() == list(range(8, 16))

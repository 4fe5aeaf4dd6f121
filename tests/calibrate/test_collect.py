"""Walking a model block by block sees what hooks on one ordinary forward pass see, and padding is never seen."""

import dataclasses

import pytest
import torch

from calibrated import calibrated, doubled, stock
from families import CLASSES, HEADS, LENGTH, MODEL_TYPES, VOCABULARY, tiny, tiny_batches, tiny_ragged
from slimformer.calibrate.collect import collect
from slimformer.calibrate.text import Batch
from slimformer.errors import NotFinite
from slimformer.linalg.moments import Moments
from slimformer.models import FAMILIES, describe
from slimformer.models.walk import real_rows

TEXT = [*(t for t in MODEL_TYPES if not FAMILIES[t].image), "roberta"]


def by_hooks(model, batches) -> dict[str, Moments]:
    """Moments of what every reader is given while the whole model runs as it always does."""
    architecture, found = describe(model), {}

    def listen(site, batch):
        def hook(_module, args):
            rows = args[0].flatten(0, -2)
            rows = rows if batch.mask is None else rows[batch.mask.flatten()]
            found[site.name] = found.get(site.name, Moments.zero(site.width)) + Moments.of(rows)

        return hook

    for batch in batches:
        handles = [
            model.get_submodule(site.reader).register_forward_pre_hook(listen(site, batch)) for site in architecture
        ]
        with torch.no_grad():
            model(**batch.inputs)
        for handle in handles:
            handle.remove()
    return found


def collected(model, batches) -> dict[str, Moments]:
    blocks = collect(model, describe(model), {"fit": batches})
    return {name: splits["fit"] for block in blocks for name, splits in block.sites.items()}


def assert_same(found, expected, rtol=1e-10):
    assert found.keys() == expected.keys()
    for name, m in found.items():
        assert m.count == expected[name].count
        assert (m.gram - expected[name].gram).norm() <= rtol * expected[name].gram.norm(), name
        assert (m.sum - expected[name].sum).norm() <= rtol * expected[name].gram.norm(), name


def padded(model, *, left: bool) -> Batch:
    """Rows of different lengths, also for decoders."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(5, VOCABULARY, (6, LENGTH), generator=generator)
    real = torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (6, 1), generator=generator)
    mask = real.flip(1) if left else real
    return Batch({"input_ids": ids, "attention_mask": mask.long()}, mask)


@pytest.mark.parametrize(("model_type", "head"), HEADS)
def test_block_by_block_is_the_same_as_one_forward_pass(model_type, head):
    model = tiny(model_type, head).double()
    batches = doubled(tiny_batches(model))
    assert_same(collected(model, batches), by_hooks(model, batches))


@pytest.mark.parametrize("model_type", TEXT)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_on_either_side_is_left_out(model_type, left):
    model = tiny(model_type).double()
    batches = [padded(model, left=left)]
    assert_same(collected(model, batches), by_hooks(model, batches))


@pytest.mark.parametrize("model_type", TEXT)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_what_stands_in_the_padding_does_not_count(model_type, left):
    if model_type == "roberta" and left:
        pytest.skip("RoBERTa counts positions from what is not the padding token, so left padding is what it reads")
    model = tiny(model_type).double()
    batch = padded(model, left=left)
    ids = batch.inputs["input_ids"].where(batch.mask, torch.tensor(9))
    garbage = dataclasses.replace(batch, inputs={**batch.inputs, "input_ids": ids})
    assert_same(collected(model, [batch]), collected(model, [garbage]))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_moments_do_not_depend_on_batches_or_their_order(model_type):
    model = tiny(model_type).double()
    batches = doubled(tiny_batches(model))
    rows = [_row(batch, i) for batch in reversed(batches) for i in reversed(range(8))]
    assert_same(collected(model, rows), collected(model, batches))


def _row(batch: Batch, i: int) -> Batch:
    """One row of a batch, cut to its length."""
    mask = None if batch.mask is None else batch.mask[i : i + 1]
    n = None if mask is None else int(mask.sum())
    inputs = {k: v[i : i + 1] if n is None else v[i : i + 1, :n] for k, v in batch.inputs.items()}
    return Batch(inputs, None if mask is None else mask[:, :n])


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_single_precision_is_close(model_type):
    batches = tiny_batches(tiny(model_type))
    exact = collected(tiny(model_type).double(), doubled(batches))
    assert_same(collected(tiny(model_type), batches), exact, rtol=1e-6)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_ragged_model_is_walked_like_any_other(model_type):
    model = tiny_ragged(tiny(model_type)).double()
    batches = doubled(tiny_batches(model, 1))
    assert_same(collected(model, batches), by_hooks(model, batches))


def test_splits_are_kept_apart():
    model = tiny("bert").double()
    data = {"fit": tiny_batches(model, 2), "select": tiny_batches(model, 1, seed=5)}
    for block in collect(model, describe(model), data):
        for name, splits in block.sites.items():
            for split, batches in data.items():
                assert_same({name: splits[split]}, {name: collected(model, batches)[name]})


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_loudness_is_the_mean_inverse_energy_after_the_block(model_type):
    found = stock(model_type)
    batches = [batch for part in found.data.values() for batch in part]
    states = []
    for batch in batches:
        with torch.no_grad():
            out = found.model.base_model(**batch.inputs, output_hidden_states=True)
        states.append(real_rows(out.hidden_states[found.architecture.blocks[0].runs], batch.mask))
    expected = (1 / torch.cat(states).square().sum(1)).mean()
    assert found.blocks[0].error_weight == pytest.approx(float(expected), rel=1e-6)


def test_nan_activations_are_named():
    model = tiny("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].intermediate.dense.weight[3, 5] = torch.nan
    blocks = collect(model, describe(model), {"fit": tiny_batches(model, 1)})
    assert next(blocks).block == 0
    with pytest.raises(NotFinite, match=r"blocks\.1\.ffn\.hidden: NaN or infinite activations"):
        next(blocks)


def test_infinite_activations_are_named():
    model = tiny("opt")
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.bias[0] = torch.inf
    with pytest.raises(NotFinite, match=r"blocks\.0\.ffn\.hidden"):
        next(collect(model, describe(model), {"fit": tiny_batches(model, 1)}))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_model_is_left_as_it_was(model_type):
    model = tiny(model_type)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    names = {name: set(vars(module)) for name, module in model.named_modules()}
    collected(model, tiny_batches(model, 1))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    for name, module in model.named_modules():
        assert set(vars(module)) == names[name], name
        assert not module._forward_pre_hooks


def test_the_model_is_left_as_it_was_after_a_failure():
    model = tiny("bert")
    with pytest.raises(Exception, match="index out of range"):
        collected(model, [Batch({"input_ids": torch.full((1, 4), 10**6)}, torch.ones(1, 4, dtype=torch.bool))])
    assert not any("forward" in vars(module) for module in model.modules())


def test_counts_are_of_real_tokens_and_of_patches():
    found = stock("bert")
    assert found.blocks[0].sites["blocks.0.ffn.hidden"]["fit"].count == sum(b.tokens for b in found.data["fit"])
    image = calibrated(tiny("vit"), n=1)
    assert image.blocks[0].sites["blocks.0.ffn.hidden"]["fit"].count == 8 * 17
    assert image.model.config.num_labels == CLASSES

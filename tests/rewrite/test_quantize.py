"""What a layer is fitted on is what reaches it, whatever the batches; and only layers inside blocks are touched."""

from __future__ import annotations

import pytest
import torch

from families import tiny, tiny_batches, tiny_ragged
from slimformer.calibrate.text import Batch
from slimformer.decompose.rounding import Grid
from slimformer.decompose.sparse import Pattern
from slimformer.errors import UnknownMethod
from slimformer.models import describe
from slimformer.models.walk import Visit, rehearse
from slimformer.rewrite.in_turn import change_in_turn, linear_layers, readings
from slimformer.rewrite.quantize import quantized, sparsified

families = pytest.mark.parametrize("family", ["llama", "bert", "opt", "gpt2", "vit"])


def grams(model, batches):
    found = {}
    change_in_turn(model, describe(model), batches, lambda name, moments: found.update({name: moments}))
    return found


@families
def test_layers_that_read_the_same_share_one_reading(family):
    model = tiny(family)
    architecture = describe(model)
    (stage,) = rehearse(model, architecture, tiny_batches(model, 1))
    found = readings(Visit(model, architecture, 0), stage)
    assert sorted(name for names in found for name in names) == sorted(linear_layers(model, architecture, 0))
    attention, ffn = architecture.blocks[0].sites
    together = {name: names for names in found for name in names}
    assert {writer.module for writer in attention.writers} == set(together[attention.writers[0].module])
    assert {writer.module for writer in ffn.writers} == set(together[ffn.writers[0].module])
    assert together[attention.reader] == (attention.reader,) and together[ffn.reader] == (ffn.reader,)


@families
def test_moments_do_not_depend_on_batches(family):
    model = tiny(family)
    (whole,) = tiny_batches(model, 1)
    cut = [
        Batch({k: v[part] for k, v in whole.inputs.items()}, None if whole.mask is None else whole.mask[part])
        for part in (slice(0, 3), slice(3, 8))
    ]
    one, two = grams(model, [whole]), grams(model, cut)
    assert one.keys() == two.keys()
    for name, moments in one.items():
        assert moments.count == two[name].count
        assert torch.allclose(moments.gram, two[name].gram, rtol=1e-4, atol=1e-4 * float(moments.gram.abs().max()))


def test_a_layer_sees_what_the_changed_ones_before_it_send():
    model = tiny("llama")
    batches = tiny_batches(model, 1)
    before = grams(model, batches)
    first = next(iter(before))

    def break_first(name, moments):
        if name == first:
            model.get_submodule(name).weight.zero_()
        seen[name] = moments

    seen = {}
    change_in_turn(model, describe(model), batches, break_first)
    last = list(before)[-1]
    assert torch.equal(seen[first].gram, before[first].gram)
    assert not torch.allclose(seen[last].gram, before[last].gram)


@families
@pytest.mark.parametrize("method", ["gptq", "nearest"])
def test_only_layers_inside_blocks_change(family, method):
    model = tiny(family)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = quantized(model, Grid(4, 16), tiny_batches(model, 1), method=method)
    inside = {f"{name}.weight" for name in found.layers} | {f"{name}.bias" for name in found.layers}
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(kept[name], model.state_dict()[name]), "the model given is left alone"
        assert name in inside or torch.equal(kept[name], tensor)
    for name, rounded in found.layers.items():
        stored = found.model.get_submodule(name).weight
        assert torch.equal(stored, rounded.W.mT if family == "gpt2" else rounded.W)


def test_fitted_errors_fall_with_bits_and_eight_bits_are_next_to_nothing():
    model = tiny("llama")
    batches = tiny_batches(model, 2)
    errors = {bits: sum(quantized(model, Grid(bits, 16), batches).errors.values()) for bits in (3, 4, 8)}
    assert errors[3] > errors[4] > errors[8] and errors[8] < 0.01


@pytest.mark.parametrize("method", ["sparsegpt", "magnitude"])
def test_half_of_all_weights_in_blocks_are_zero(method):
    model = tiny_ragged(tiny("llama"))
    found = sparsified(model, Pattern(0.5, 2, 4), tiny_batches(model, 1), method=method)
    assert set(found.zeros) == {n for i in range(3) for n in linear_layers(model, describe(model), i)}
    assert all(zeros == pytest.approx(0.5, abs=0.1) for zeros in found.zeros.values())


def test_layers_without_weights_are_left_out():
    model = tiny("llama")
    name = linear_layers(model, describe(model), 0)[0]
    model.get_submodule(name).weight = torch.nn.Parameter(torch.zeros(0, 32))
    assert name not in linear_layers(model, describe(tiny("llama")), 0)


def test_an_unknown_method_is_named():
    with pytest.raises(UnknownMethod, match="choose from gptq, nearest"):
        quantized(tiny("llama"), Grid(4), method="lucky")  # type: ignore[arg-type]

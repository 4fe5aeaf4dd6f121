"""Where scale is free and where it is not, for every family, by what the models do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from families import MODEL_TYPES, tiny, tiny_batches
from slimformer.errors import ScaleMatters
from slimformer.models import describe
from slimformer.models.hooks import listening
from slimformer.models.norms import affine_of, mlp_norms, require_scale_free
from slimformer.nn.stand_ins import on_sphere

SCALE_FREE = {"bert", "roberta", "distilbert"}
KINDS = [*((model_type, {}) for model_type in MODEL_TYPES), ("opt", {"do_layer_norm_before": False})]
every_kind = pytest.mark.parametrize(
    ("model_type", "sizes"), KINDS, ids=lambda x: x if isinstance(x, str) else "".join(x)
)


def is_free(model_type, sizes):
    return model_type in SCALE_FREE or bool(sizes)


@every_kind
def test_the_scale_is_free_exactly_where_a_norm_reads_the_sum(model_type, sizes):
    model = tiny(model_type, **sizes)
    architecture = describe(model)
    for i in range(architecture.n_blocks):
        if is_free(model_type, sizes):
            assert "norm" in require_scale_free(model, architecture, i).lower()
        else:
            with pytest.raises(ScaleMatters, match=f"block {i}: {model_type} norms before it reads"):
                require_scale_free(model, architecture, i)


def test_a_family_that_says_nothing_of_its_norms_is_refused_with_that_reason():
    model = tiny("llama")
    architecture = describe(model)
    neurons = architecture.sites[1]
    silent = architecture.with_sites({neurons.name: replace(neurons, part=replace(neurons.part, norm=None))})
    assert mlp_norms(model, silent, 0).before is None
    with pytest.raises(ScaleMatters, match="nobody has said which norms"):
        require_scale_free(model, silent, 0)


@every_kind
def test_twice_the_sum_is_the_same_model_exactly_where_the_scale_is_free(model_type, sizes):
    """Double what enters the norm named (or, without one, what the last feed-forward part writes) and compare."""
    model = tiny(model_type, **sizes).double()
    architecture = describe(model)
    norms, (batch,) = mlp_norms(model, architecture, 1), tiny_batches(model, 1)
    inputs = {name: X.double() if X.is_floating_point() else X for name, X in batch.inputs.items()}
    name = norms.after or architecture["blocks.1.ffn.hidden"].reader
    plain = model(**inputs)[0].detach()
    module = model.get_submodule(name)
    handle = (
        module.register_forward_pre_hook(lambda _m, args: (2 * args[0],))
        if norms.after
        else module.register_forward_hook(lambda _m, _args, out: 2 * out)
    )
    doubled = model(**inputs)[0].detach()
    handle.remove()
    assert (float((doubled - plain).abs().max()) < 1e-4) == is_free(model_type, sizes)


@every_kind
def test_what_a_feed_forward_part_reads_lies_on_the_sphere_of_the_norm_before(model_type, sizes):
    model = tiny(model_type, **sizes)
    architecture, heard = describe(model), {}
    norms, path = mlp_norms(model, architecture, 1), architecture["blocks.1.ffn.hidden"].writers[0].module
    (batch,) = tiny_batches(model, 1)
    with torch.inference_mode(), listening(model, inputs={path: lambda X: heard.update(x=X)}):
        model(**batch.inputs)
    affine = affine_of(model.get_submodule(norms.before))
    X = heard["x"].flatten(0, -2)
    lengths = ((X - affine.shift) / affine.gain).square().mean(1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), atol=1e-3, rtol=0)
    assert on_sphere(X, affine.gain, affine.shift).norm(dim=1).sub(1).abs().max() < 1e-5

"""The replacements that are compared: what is linear is met, all neurons are the dense part, budgets are kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import benched  # noqa: F401  puts the benchmarks on the path
import pytest
import torch

import mlp
from calibrated import outputs
from families import tiny, tiny_batches
from mlp_methods import METHODS, Part, eliminated, held_out, low_rank_mlp
from slimformer.decompose.linear_map import reduced_rank
from slimformer.errors import ScaleMatters
from slimformer.linalg.pairs import Pairs


def subject(model_type: str) -> Any:
    """What `mlp` needs of a subject: 640 wide enough rows to fit, others to measure on."""
    model = tiny(model_type)
    calibration, reports = {"fit": tiny_batches(model, 12)}, {"held out": tiny_batches(model, 2, seed=1)}
    return SimpleNamespace(model=model, name=model_type, calibration=calibration, reports=reports, language=False)


@pytest.fixture(scope="module", params=["bert", "llama"])
def part(request) -> Part:
    return next(mlp.parts(subject(request.param), [1]))


def multiplications(module: torch.nn.Module) -> int:
    """Entries of matrices, whether they are learnt or drawn."""
    return sum(t.numel() for t in [*module.parameters(), *module.buffers()] if t.ndim == 2)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_replacement_keeps_its_budget(part, method):
    make, budgets = METHODS[method]
    for budget in budgets:
        try:
            module = make(part, budget)
        except ScaleMatters:
            assert not part.post_norm
            continue
        spent = multiplications(module) / part.D**2
        if method == "bypass" and not part.site.gated:
            spent += 2 * (part.D // 8) / part.D  # a checkpoint holds every rank as two neurons, the module as one row
        assert spent <= budget + 1e-9 or method == "harmonics"  # of which 32 inputs are too few
        assert spent >= 0.8 * budget or method == "harmonics"
        r2, cosine = held_out(part, module)
        assert r2 <= 1
        assert abs(cosine) < 1 + 1e-6


def test_all_neurons_are_the_dense_part(part):
    everything = part.matrices * part.site.units / part.D
    r2, cosine = held_out(part, eliminated(part, everything))
    assert r2 == pytest.approx(1, abs=1e-5)
    assert cosine == pytest.approx(1, abs=1e-5)
    small = mlp.with_parts(SimpleNamespace(model=part.model), {1: eliminated(part, everything)})
    (batch,) = tiny_batches(part.model, 1)
    torch.testing.assert_close(outputs(small, batch), outputs(part.model, batch), atol=1e-4, rtol=0)


def test_the_best_linear_map_beats_skipping_and_least_rank(part):
    r2 = {m: held_out(part, METHODS[m][0](part, 1.0))[0] for m in ("skip", "least-squares")}
    assert r2["least-squares"] > r2["skip"]


def test_rows_are_those_of_the_model(part):
    """What is added to the stream, and what it is added to, make what the model makes."""
    model = part.model
    writer = model.get_submodule(part.site.writers[0].module)
    assert part.fit.x.shape[1] == writer.in_features
    reader = model.get_submodule(part.site.reader)
    with torch.inference_mode():
        torch.testing.assert_close(reader(part.fit.z), part.fit.y, atol=1e-5, rtol=0)


def test_two_thin_layers_are_the_map_of_their_rank():
    X, Y = torch.randn(200, 32).double(), torch.randn(200, 32).double()
    maps = reduced_rank(Pairs.of(X, Y))
    found, thin = maps.at(5), low_rank_mlp(maps, 5)
    torch.testing.assert_close(thin(X.float()), (X @ found.A.mT + found.b).float(), atol=1e-4, rtol=0)
    assert sum(p.numel() for p in thin.parameters()) == 5 * (32 + 32) + 32

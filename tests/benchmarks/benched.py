"""The methods of `benchmarks/simulated.py` on tiny models in double precision."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from transformers import PreTrainedModel

from calibrated import doubled, exact, outputs, recipe
from families import LENGTH, tiny, tiny_batches
from slimformer.calibrate.collect import collect
from slimformer.models import describe

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts, not a package

from baselines import Given
from simulated import SIMULATED
from simulated_evidence import Evidence

__all__ = ["FAMILIES", "LENGTH", "SIMULATED", "Evidence", "assert_same", "evidence_of", "offered"]

FAMILIES = ("llama", "qwen2", "gpt2", "opt", "bert", "vit")  # grouped and rotary, with biases, fused, post-norm, images


def evidence_of(model: PreTrainedModel | str) -> Evidence:
    """What the methods are given on a model, or on a tiny one of a type: hardly any ridge, neurons one by one."""
    model = exact(tiny(model) if isinstance(model, str) else model)
    architecture = describe(model)
    data = {"fit": doubled(tiny_batches(model)), "select": doubled(tiny_batches(model, 1, seed=1))}
    moments = cache(lambda: list(collect(model, architecture, data)))  # only MoDeGPT asks for them
    given = Given(model, architecture, lambda i: moments()[i], {}, LENGTH, recipe(multiple_of=1))
    return Evidence(given, data["fit"], data["select"])


def offered() -> Sequence[tuple[str, str]]:
    """Every method with every family it can be had for."""
    models = {name: tiny(name) for name in FAMILIES}
    return [
        (method, name) for method, found in SIMULATED.items() for name in FAMILIES if not found.refuses(models[name])
    ]


def assert_same(evidence: Evidence, model: PreTrainedModel) -> None:
    """The same outputs as the dense model on data nobody has seen."""
    (batch,) = doubled(tiny_batches(evidence.given.model, 1, seed=7))
    torch.testing.assert_close(outputs(model, batch), outputs(evidence.given.model, batch), rtol=0, atol=1e-6)

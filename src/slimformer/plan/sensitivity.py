"""From probes to weights: how much an error at each site harms the outputs of the whole model.

A probe cuts one site alone, to about its knee, and measures the harm h at the outputs (mean KL divergence in nats for
models with logits). With e the error of that cut on its curve, α = h / e turns every other error of the site into
harm, because both are quadratic in a small perturbation. Probes are short and noisy, so they are tempered towards
their geometric mean h̄:

    α = h^τ h̄^(1−τ) / e,     τ = 1: as measured,   τ = 0: the same relative error hurts the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slimformer.decompose import Curve
from slimformer.plan.cost import Size


@dataclass(frozen=True)
class Probe:
    """One site cut alone to `keep` units: its error on the curve, and the harm at the outputs."""

    site: str
    keep: int
    error: float
    harm: float


def sensitivities(probes: Mapping[str, Probe], *, temper: float) -> dict[str, float]:
    """α of every site that was probed."""
    useful = {name: probe for name, probe in probes.items() if probe.error > 0 and probe.harm > 0}
    if not useful:
        return {}
    mean = math.exp(sum(math.log(probe.harm) for probe in useful.values()) / len(useful))
    weights = {name: probe.harm**temper * mean ** (1 - temper) / probe.error for name, probe in useful.items()}
    least = min(weights.values())
    return {name: weights.get(name, least) for name in probes}  # no harm seen: as harmless as the most harmless


def predicted_harm(probes: Mapping[str, Probe], curves: Mapping[str, Curve], sizes: Mapping[str, Size]) -> float:
    """Σ over sites of h · e(k) / e: what the probes, as measured, say a plan will do to the outputs.

    It takes the harms of sites to add up, which small ones do; large ones compound.
    """
    total = 0.0
    for name, probe in probes.items():
        if name not in sizes or name not in curves:
            continue  # attention is cut by heads or by ranks, and was probed for both
        curve = curves[name]
        left = curve.held[curve.sizes.index(sizes[name].units)]
        total += probe.harm * left / probe.error if probe.error > 0 else 0.0
    return total

"""From probes to weights: how much an error at each site harms the outputs of the whole model.

A probe cuts sites a little and measures the harm h at the outputs (mean KL divergence in nats for models with logits).
With e the error of that cut on its curve, α = h / e turns every other error of the site into harm, because both are
quadratic in a small perturbation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slimformer.decompose import Curve
from slimformer.plan.cost import Size
from slimformer.plan.curves import error_left


@dataclass(frozen=True)
class Probe:
    """One site cut alone to `keep` units: its error on the curve, and the harm at the outputs."""

    site: str
    keep: int
    error: float
    harm: float


def sensitivities(probes: Mapping[str, Probe], curves: Mapping[str, Curve]) -> dict[str, float]:
    """α of every site that was probed, for these curves: theirs may be in other units than those of the probes."""
    errors = {name: _error(probe, curves) for name, probe in probes.items()}
    weights = {name: probe.harm / errors[name] for name, probe in probes.items() if errors[name] > 0 and probe.harm > 0}
    if not weights:
        return {}
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
        left = error_left(curves, name, sizes[name])
        error = _error(probe, curves)
        total += probe.harm * left / error if error > 0 else 0.0
    return total


def _error(probe: Probe, curves: Mapping[str, Curve]) -> float:
    """What the curve in use says of the cut that was probed."""
    curve = curves.get(probe.site)
    return curve.held[curve.sizes.index(probe.keep)] if curve and probe.keep in curve.sizes else probe.error

"""Sequential correction: refit a reader on what the cut model before it really sends.

Nested reductions are fitted on the features of the dense model. In the cut model the blocks before have erred, so the
reader sees other features x̂, and the stream ĥ its output is added to is off by h − ĥ already. With y what the dense
reader wrote and ŷ what the cut one writes, two things can be asked of a change (δW, δb) of the cut reader:

    r₀ = y − ŷ                  write what the dense reader wrote,
    r₁ = (h + y) − (ĥ + ŷ)      repair the stream as well,           r_β = (1 − β) r₀ + β r₁.

Asking too much of too little data does harm, so the change is held to the nested solution on dense features z:

    min  (1 − s) E ‖r_β − δW x̂ − δb‖² + s E ‖δW z + δb‖²,     s = ρ / (1 + ρ).

Closed form, with m and A the mean and covariance of the mixture of x̂ and z with weights 1 − s and s:

    δW = (1 − s) E (r_β − (1 − s) r̄_β)(x̂ − m)ᵀ (A + λI)⁻¹,     δb = (1 − s) r̄_β − δW m.

ρ → ∞ leaves the nested solution as it is. β and ρ are those with the least E ‖r₁ − δW x̂ − δb‖² on held-out data; the
change is linear in β, so this is a parabola in β. As no change at all is among the candidates, the correction
cannot lose on the held-out data. Cost O(k³) for each of a few ρ.

Reference: the targets are those of Park et al., K-prune (2024); the pull to the nested solution is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments
from slimformer.linalg.residuals import Residuals

RHOS = (0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Change:
    """δW, δb, how they were chosen, and the held-out mean squared error of the stream before and after."""

    δW: Float[Tensor, "m k"]
    δb: Float[Tensor, " m"]
    β: float
    ρ: float
    before: float
    after: float


def sequential_change(
    fit: Residuals, kept: Moments, held: Residuals, *, bias: bool, ridge: float, rhos: tuple[float, ...] = RHOS
) -> Change:
    """The change of a reader with the least held-out error of the stream; none (ρ = ∞) when nothing helps.

    `kept` are the moments of the kept features of the dense model, `fit` and `held` pairs of the cut one.
    """
    m, k = fit.sums.shape[1], fit.x.width
    before = held.square / max(held.count, 1)
    best = Change(
        torch.zeros(m, k, dtype=torch.float64), torch.zeros(m, dtype=torch.float64), 0.0, torch.inf, before, before
    )
    for ρ in rhos:
        ends = solve(fit, kept, ρ, bias=bias, ridge=ridge)
        β, after = _best_share(held, *ends)
        if after < best.after:
            (W0, b0), (W1, b1) = ends
            best = Change(W0 + β * (W1 - W0), b0 + β * (b1 - b0), β, ρ, before, after)
    return best


Map = tuple[Float[Tensor, "m k"], Float[Tensor, " m"]]


def solve(fit: Residuals, kept: Moments, ρ: float, *, bias: bool, ridge: float) -> tuple[Map, Map]:
    """(δW, δb) for β = 0 and for β = 1."""
    n, s = max(fit.count, 1), ρ / (1 + ρ)
    zero = torch.zeros_like(fit.x.mean)
    μ, ν = (fit.x.mean, kept.mean) if bias else (zero, zero)
    m = (1 - s) * μ + s * ν
    A = (1 - s) * fit.x.second(centred=False) + s * kept.second(centred=False) - torch.outer(m, m)
    L = torch.linalg.cholesky(damped(A, ridge))
    out = []
    for total, cross in zip(fit.sums, fit.cross, strict=True):
        r = (1 - s) * total / n if bias else torch.zeros_like(total)
        B = (1 - s) * cross / n - torch.outer(m, r)
        δW = torch.cholesky_solve(B, L).mT
        out.append((δW, r - δW @ m))
    return out[0], out[1]


def held_error(held: Residuals, δW: Float[Tensor, "m k"], δb: Float[Tensor, " m"]) -> float:
    """E ‖r₁ − δW x̂ − δb‖²."""
    return held.square / max(held.count, 1) - 2 * _gain(held, δW, δb) + _inner(held, (δW, δb), (δW, δb))


def _best_share(held: Residuals, zero: Map, one: Map) -> tuple[float, float]:
    """β in [0, 1] with the least held-out error of δ_β = δ₀ + β (δ₁ − δ₀), and that error."""
    step = (one[0] - zero[0], one[1] - zero[1])
    slope = _inner(held, zero, step) - _gain(held, *step)
    curvature = _inner(held, step, step)
    β = min(max(-slope / curvature, 0.0), 1.0) if curvature > 0 else 0.0
    return β, held_error(held, zero[0] + β * step[0], zero[1] + β * step[1])


def _gain(held: Residuals, δW: Float[Tensor, "m k"], δb: Float[Tensor, " m"]) -> float:
    """E ⟨r₁, δW x̂ + δb⟩."""
    return float((held.cross[1].mT * δW).sum() + held.sums[1] @ δb) / max(held.count, 1)


def _inner(held: Residuals, a: Map, b: Map) -> float:
    """E ⟨a(x̂), b(x̂)⟩ of two affine maps."""
    C, μ = held.x.second(centred=False), held.x.mean
    return float(((a[0] @ C) * b[0]).sum() + (a[0] @ μ) @ b[1] + a[1] @ (b[0] @ μ) + a[1] @ b[1])

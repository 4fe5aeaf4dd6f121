"""Linear discriminant analysis from moments: one eigendecomposition, every shrinkage, exact leave-one-out.

Classes with means m_c and one covariance Σ, the pooled one within classes, give scores that are linear in x:

    s_c(x) = wᵀx + b,   w = Σ_γ⁻¹ m_c,   b = −½ m_cᵀ Σ_γ⁻¹ m_c + log π_c,   Σ_γ = (1 − γ) Σ + γ (tr Σ / d) I

in coordinates scaled by the standard deviations within classes. It is the best rule if classes are Gaussian with
equal covariance, a good one if not. γ = 1 with equal priors is the nearest class mean. With S = Σ (n − C) = Q Λ Qᵀ
every Σ_γ is diagonal in Q; leaving one row out of class c (r = x − m_c, N = n_c, weight u) changes it by a rank of one,

    m_c' = m_c − u r / (N − u),     S' = S − κ r rᵀ,   κ = u N / (N − u),

so Sherman and Morrison give the leave-one-out scores of a row in O(C d) without fitting anything again.

References: Hastie, Tibshirani, Friedman (2009), 4.3; Ledoit, Wolf (2004); Friedman (1989) for the shrinkage path.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slimformer.heads.class_moments import NOTHING, ClassMoments

GAMMAS = (1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95, 1.0)
BARELY = 1e-8  # Σ is never inverted with less shrinkage than this


@dataclass(frozen=True)
class Within:
    """The scatter within classes in its own axes: x̃ = (x / scale) Q."""

    scale: Float[Tensor, " d"]
    Q: Float[Tensor, "d d"]
    values: Float[Tensor, " d"]  # eigenvalues of S in scaled coordinates, none below zero
    means: Float[Tensor, "C d"]  # m̃_c
    counts: Float[Tensor, " C"]
    freedom: float  # n − C

    def turned(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return (X.double() / self.scale) @ self.Q


def within(moments: ClassMoments, *, standardize: bool = True) -> Within:
    """Decompose S = Σ x xᵀ − Σ n_c m_c m_cᵀ. Cost d³. A constant coordinate keeps the scale 1."""
    M, n = moments.means, moments.counts
    S = moments.gram - (n[:, None] * M).mT @ M
    freedom = max(float(n.sum()) - int((n > NOTHING).sum()), 1.0)
    size = moments.gram.diagonal()  # rounding of the difference is relative to this
    var = (S.diagonal() / freedom).clamp(min=0)
    real = S.diagonal() > 1e-12 * size
    scale = torch.where(real, var.sqrt(), torch.ones_like(var)) if standardize else torch.ones_like(var)
    values, Q = torch.linalg.eigh(S / scale / scale[:, None])
    return Within(scale, Q, values.clamp(min=0), (M / scale) @ Q, n, freedom)


def discriminant(
    scatter: Within, gamma: float, log_prior: Float[Tensor, " C"]
) -> tuple[Float[Tensor, "C d"], Float[Tensor, " C"]]:
    """W and b of the scores in the original coordinates, less what all classes share.

    With m_c = μ + d_c the scores have μᵀ Σ_γ⁻¹ (x − ½ μ) in common, which no choice between classes sees. Where a mean
    is large compared with a deviation it is huge, and in single precision it would drown the differences.
    """
    inverse = 1 / shrunk(scatter, gamma)
    seen = log_prior > -torch.inf
    centre = scatter.means[seen].mean(0) if bool(seen.any()) else scatter.means.mean(0)
    D = torch.where(seen[:, None], scatter.means - centre, 0.0)
    W = D * inverse
    b = log_prior - (W * (centre + D / 2)).sum(1)
    return (W @ scatter.Q.mT) / scatter.scale, b


def shrunk(scatter: Within, gamma: float) -> Float[Tensor, " d"]:
    """Eigenvalues of Σ_γ. Where nothing varies at all, Σ is taken as the identity."""
    gamma = max(gamma, BARELY)
    level = float(scatter.values.mean()) / scatter.freedom
    return (1 - gamma) * scatter.values / scatter.freedom + gamma * (level if level > 0 else 1.0)


def left_out_scores(
    scatter: Within,
    Z: Float[Tensor, "n d"],
    c: Int[Tensor, " n"],
    own: Float[Tensor, " n"],
    gamma: float,
    log_prior: Float[Tensor, " C"] | None,
) -> Float[Tensor, "n C"]:
    """Scores of every row by the moments without it: −½ (x − m)ᵀ Σ_γ⁻¹ (x − m) + log π, exactly. Cost n d C.

    Z are the rows as `scatter.turned` gives them. `own` is the weight that is left out of each row, in the units of the
    counts (so times the weight of its class); log_prior None means empirical priors, which then lose the row, too.
    Class weights and the scale of the coordinates stay those of all rows. For a row that is its class there is nothing
    left to measure the distance to: its own score is −∞.
    """
    gamma = max(gamma, BARELY)
    N = scatter.counts[c]
    left = N - own
    alone = left <= NOTHING
    rest = left.clamp(min=NOTHING)
    r = Z - scatter.means[c]
    kappa = torch.where(alone, 0.0, own * N / rest)
    freedom = (scatter.freedom - own + alone.double()).clamp(min=NOTHING)  # its class no longer takes a degree
    level = (scatter.values.sum() - kappa * (r * r).sum(1)).clamp(min=0) / freedom / len(scatter.scale)
    a = (1 - gamma) / freedom
    ground = gamma * torch.where(level > 0, level, torch.ones_like(level))
    inverse = 1 / (a[:, None] * scatter.values + ground[:, None])  # n × d
    V = inverse * Z
    D = (V * Z).sum(1, keepdim=True) - 2 * V @ scatter.means.mT + inverse @ (scatter.means**2).mT
    t = inverse * r
    rt = (r * t).sum(1)
    cross = (Z * t).sum(1, keepdim=True) - t @ scatter.means.mT  # (x − m_j)ᵀ A⁻¹ r
    lift = kappa * a / (1 - kappa * a * rt).clamp(min=1e-300)
    D = D + lift[:, None] * cross**2
    grown = N / rest
    D[torch.arange(len(c)), c] = torch.where(alone, torch.inf, grown**2 * (rt + lift * rt**2))
    return log_priors_without(scatter, c, own) - D / 2 if log_prior is None else log_prior - D / 2


def log_priors_without(scatter: Within, c: Int[Tensor, " n"], own: Float[Tensor, " n"]) -> Float[Tensor, "n C"]:
    """log π by counts that have lost one row each."""
    counts = scatter.counts.expand(len(c), -1).clone()
    counts[torch.arange(len(c)), c] -= own
    return (counts / counts.sum(1, keepdim=True)).clamp(min=0).log()


def ledoit_wolf(scatter: Within, Z: Float[Tensor, "n d"], c: Int[Tensor, " n"]) -> float:
    """γ of Ledoit and Wolf (2004) for the pooled covariance; fourth moments are those of the rows given.

    γ = min(1, β² / δ²),  δ² = ‖Σ − μI‖² / d,  β² = (mean ‖r‖⁴ − ‖Σ‖²) / (n d),  in scaled coordinates.
    """
    n, d = float(scatter.counts.sum()), len(scatter.scale)
    r = Z - scatter.means[c]
    v = scatter.values / scatter.freedom
    spread = float(((v - v.mean()) ** 2).sum()) / d
    noise = (float((r.square().sum(1) ** 2).mean()) - float((v**2).sum())) / (n * d)
    return 1.0 if spread <= 0 else min(1.0, max(0.0, noise) / spread)

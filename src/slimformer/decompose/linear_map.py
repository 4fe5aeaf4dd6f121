"""How linear is it? The best affine map from the input of a part of the network to its output.

For pairs (x, y) with means μ and ν, C = Cov x and B = Cov(x, y), the ridge regression is

    A = Bᵀ (C + λI)⁻¹,     ŷ = A x + b,     b = ν − A μ,

and no affine map has a smaller E ‖y − ŷ‖² + λ ‖A‖². What it leaves is the floor e = E ‖y − ν‖² − tr(A B).

Reduced rank: for any map M, E ‖y − M x − b‖² + λ‖M‖² = e + ‖(A − M)(C + λI)^½‖², so the best M of rank r is A projected
on the leading eigenvectors u_i of A (C + λI) Aᵀ = A B, and the price of the rank is the energy that is discarded:

    M_r = U_r U_rᵀ A,       e(r) = e + Σ_{i>r} ℓ_i,      A B = Σ ℓ_i u_i u_iᵀ.

M_r costs r (d + m) multiplications, A costs d m: the rank pays below d m / (d + m).

R² = 1 − E ‖y − ŷ‖² / E ‖y − ȳ‖² is the share of the variance the map explains; on data that were not fitted it can be
below zero. A feed-forward part is added to its input, so the R² of the *sum* is near one whatever the part does: only
that of the part alone says something.

Reference: Izenman (1975) for reduced-rank regression; Shen et al., NBL (arXiv 2505.21077) and Razzhigaev et al. (arXiv
2405.12250) for linear maps of whole parts of transformers. Cost O(d² (d + m)) once, for every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.errors import RankTooHigh
from slimformer.linalg.damped import damped
from slimformer.linalg.pairs import Pairs

RIDGE = 1e-4
RTOL_SPREAD = 1e-9  # of the widest coordinate: what hardly varies is not divided by, but left out


@dataclass(frozen=True)
class AffineMap:
    """ŷ = A x + b."""

    A: Float[Tensor, "m d"]
    b: Float[Tensor, " m"]


@dataclass(frozen=True)
class RankMaps:
    """ŷ = U_r (V_r x − V_r μ) + ν for every rank r: the first r columns of U, the first r rows of V = Uᵀ A.

    `energies` are ℓ_i, largest first; `floor` is the penalised error no rank gets rid of.
    """

    U: Float[Tensor, "m k"]
    V: Float[Tensor, "k d"]
    μ: Float[Tensor, " d"]
    ν: Float[Tensor, " m"]
    energies: Float[Tensor, " k"]
    floor: float

    def factors(self, r: int) -> tuple[Float[Tensor, "m r"], Float[Tensor, "r d"], Float[Tensor, " m"]]:
        """U_r, V_r and the bias b of ŷ = U_r V_r x + b."""
        if r > len(self.V):
            raise RankTooHigh(f"a map of rank {r} was asked for; this one has rank {len(self.V)} at most")
        U, V = self.U[:, :r], self.V[:r]
        return U, V, self.ν - U @ (V @ self.μ)

    def at(self, r: int) -> AffineMap:
        U, V, b = self.factors(r)
        return AffineMap(U @ V, b)


def linear_map(fit: Pairs, *, ridge: float = RIDGE, bias: bool = True, standardise: bool = False) -> AffineMap:
    """The ridge regression of y on x, λ = ridge · mean diagonal of C; without a bias moments are about zero.

    Where coordinates are of different kinds `standardise` takes each in units of its own spread, so that λ means the
    same to all of them.
    """
    zero = torch.zeros_like(fit.x.mean), torch.zeros_like(fit.mean)
    μ, ν = (fit.x.mean, fit.mean) if bias else zero
    C, B, _ = fit.about(μ, ν)
    w = torch.ones_like(μ)
    if standardise:
        spread = C.diagonal().clamp_min(0).sqrt()
        w = (1 / spread).where(spread > RTOL_SPREAD * spread.max(), 0.0)
    A = (torch.cholesky_solve(w[:, None] * B, torch.linalg.cholesky(damped(w[:, None] * C * w, ridge))) * w[:, None]).mT
    return AffineMap(A, ν - A @ μ)


def reduced_rank(fit: Pairs, *, ridge: float = RIDGE) -> RankMaps:
    """The best map of every rank, from one eigendecomposition."""
    μ, ν = fit.x.mean, fit.mean
    _, B, square = fit.about(μ, ν)
    A = linear_map(fit, ridge=ridge).A
    AB = A @ B
    ℓ, U = torch.linalg.eigh((AB + AB.mT) / 2)
    k = min(A.shape)
    ℓ, U = ℓ.flip(0)[:k].clamp_min(0), U.flip(1)[:, :k]
    return RankMaps(U, U.mT @ A, μ, ν, ℓ, square - float(AB.trace()))


def error_of(pairs: Pairs, fitted: AffineMap) -> float:
    """E ‖y − A x − b‖² on any data, from its sums alone."""
    μ = pairs.x.mean
    C, B, square = pairs.about(μ, fitted.A @ μ + fitted.b)
    return max(square - 2 * float((fitted.A.mT * B).sum()) + float(((fitted.A @ C) * fitted.A).sum()), 0.0)


def r_squared(pairs: Pairs, fitted: AffineMap) -> float:
    """1 − E ‖y − ŷ‖² / E ‖y − ȳ‖²; 1 where y does not vary and is met, −∞ where it does not and is not."""
    left, whole = error_of(pairs, fitted), pairs.variance
    if whole > 0:
        return 1 - left / whole
    return 1.0 if left == 0 else -torch.inf


def errors_at_every_rank(pairs: Pairs, maps: RankMaps) -> Float[Tensor, " k1"]:
    """E ‖y − ŷ_r‖² for r = 0 … k on any data: with orthonormal u every rank adds its own terms. Cost O(k d (d + m))."""
    C, B, square = pairs.about(maps.μ, maps.ν)
    gained = 2 * ((maps.V @ B) * maps.U.mT).sum(1) - ((maps.V @ C) * maps.V).sum(1)
    return (square - torch.cat([gained.new_zeros(1), gained.cumsum(0)])).clamp_min(0)

"""A v ≈ λu: the linear map whose outputs have the right directions, the scale of every sample being free.

Given rows v_i ∈ ℝᵈ and unit rows u_i ∈ ℝᵖ, find A and numbers λ_i with A v_i ≈ λ_i u_i. So a part of the network is
replaced whose output is read by a norm: the norm forgets λ.

λ by an eigenvector. For given λ the best A is least squares, A = (Σ λ_i u_i v_iᵀ) (VᵀV)⁻¹. What it leaves is

    Σ |λ_i u_i − A v_i|² = λᵀ (I − H∘G) λ,      H = V (VᵀV)⁻¹ Vᵀ,   G = U Uᵀ,   ∘ entry by entry,

so at |λ|² = n the best λ is the top eigenvector of H∘G, which is positive semi-definite (Schur) with eigenvalues ≤ 1; 1
means an exact fit. One product costs no n × n matrix: (H∘G) λ has the entries u_iᵀ A v_i with the A of that λ. Hence
alternating least squares (λ gives A, A gives λ_i = u_iᵀ A v_i, normalise) *is* power iteration, and finds the global
optimum from almost every start (`top_scales`).

λ by a linear solve. The eigenvector may put all its weight on few samples. With Σ λ_i = n in place of |λ|² = n,

    λ ∝ (I − H∘G + εI)⁻¹ 1,

one positive definite system (`gauged_scales`, by conjugate gradients). λ_i ≤ 0 says that sample i points away from what
the map makes of it.

A by the mean cosine. Both count a sample by λ_i². To count all alike, maximise Σ cos(A v_i, u_i). With s_i = |A v_i|
and c_i the cosine, a maximum satisfies

    A = (Σ u_i v_iᵀ / s_i) (Σ c_i/s_i² v_i v_iᵀ)⁻¹,

weighted least squares, iterated (weights c_i/s_i², targets u_i s_i/c_i): `aligned`.

What not to do: λ = 1 is biased even without noise. The null vector of Σ (v vᵀ)⊗(I − u uᵀ) at |A| = 1 (as in estimating
homographies) hides A in directions where v hardly varies, as soon as there is noise.

Reference: the eigenvector form is ours; Shopkhoev et al., ReplaceMe (arXiv 2505.02819) for the cosine objective, there
by gradient descent. Cost O(n d p) a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.damped import damped
from slimformer.linalg.sphere import unit_rows

RIDGE = 1e-6
SWEEPS = 500
RTOL = 1e-10  # change of the eigenvalue in one sweep
GAUGE = 1e-3  # ε of the linear solve: at an exact fit I − H∘G is singular
LEAST_COSINE = 0.05  # of the weights: below it a sample would get hardly any, or less than none
RTOL_SCALE = 1e-3  # of the mean |A v|: a sample that is all but sent to zero must not own the next step
TURNS = 30
STEPS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
RTOL_COSINE = 1e-6


@dataclass(frozen=True)
class Scales:
    """λ (mean square or mean 1, as its gauge says), the map A it leads to, and λᵀ(H∘G)λ / |λ|²: 1 is an exact fit."""

    λ: Float[Tensor, " n"]
    A: Float[Tensor, "p d"]
    fit: float
    sweeps: int


@dataclass(frozen=True)
class Directions:
    """The data of one problem: rows v, unit rows u, and the factor of VᵀV that every step solves with."""

    V: Float[Tensor, "n d"]
    U: Float[Tensor, "n p"]
    ridge: float = RIDGE

    @classmethod
    def of(cls, V: Float[Tensor, "n d"], Y: Float[Tensor, "n p"], *, ridge: float = RIDGE) -> Directions:
        """From rows and targets of any length; a bias is a column of ones in V."""
        return cls(V, unit_rows(Y), ridge)

    @cached_property
    def factor(self) -> Float[Tensor, "d d"]:
        return torch.linalg.cholesky(damped(self.V.mT @ self.V, self.ridge))

    def map_of(self, λ: Float[Tensor, " n"]) -> Float[Tensor, "p d"]:
        """The best A for given scales: least squares of λu on v."""
        return torch.cholesky_solve(self.V.mT @ (λ[:, None] * self.U), self.factor).mT

    def scales_of(self, A: Float[Tensor, "p d"]) -> Float[Tensor, " n"]:
        """The best scales for a given A: λ_i = u_iᵀ A v_i."""
        return ((self.V @ A.mT) * self.U).sum(1)

    def product(self, λ: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """(H∘G) λ, without H or G."""
        return self.scales_of(self.map_of(λ))


def top_scales(
    data: Directions, *, start: Float[Tensor, " n"] | None = None, sweeps: int = SWEEPS, rtol: float = RTOL
) -> Scales:
    """λ as the top eigenvector of H∘G, |λ|² = n, Σ λ ≥ 0, by power iteration (alternating least squares)."""
    λ = torch.ones_like(data.V[:, 0]) if start is None else start
    n, value, done = len(λ), 0.0, 0
    λ = λ * (n**0.5 / λ.norm())
    for done in range(1, sweeps + 1):  # noqa: B007  told to the caller
        new = data.product(λ)
        before, value = value, float(new @ λ) / n
        λ = new * (n**0.5 / new.norm().clamp_min(torch.finfo(new.dtype).tiny))
        if abs(value - before) <= rtol * value:
            break
    λ = λ if float(λ.sum()) >= 0 else -λ
    return Scales(λ, data.map_of(λ), value, done)


def gauged_scales(data: Directions, *, ε: float = GAUGE, sweeps: int = SWEEPS, rtol: float = 1e-8) -> Scales:
    """λ ∝ (I − H∘G + εI)⁻¹ 1 with mean 1, by conjugate gradients."""
    one = torch.ones_like(data.V[:, 0])
    x, r = torch.zeros_like(one), one.clone()
    p, rr, done = r.clone(), float(r @ r), 0
    for done in range(1, sweeps + 1):  # noqa: B007
        q = (1 + ε) * p - data.product(p)
        α = rr / float(p @ q)
        x, r = x + α * p, r - α * q
        old, rr = rr, float(r @ r)
        if rr <= rtol**2 * len(one):
            break
        p = r + (rr / old) * p
    λ = x / x.mean()
    return Scales(λ, data.map_of(λ), float(λ @ data.product(λ)) / float(λ @ λ), done)


@dataclass(frozen=True)
class Aligned:
    """A map, and the mean cosine of its outputs with u, before and after every sweep."""

    A: Float[Tensor, "p d"]
    cosines: tuple[float, ...]


def aligned(data: Directions, A: Float[Tensor, "p d"], *, turns: int = TURNS, rtol: float = RTOL_COSINE) -> Aligned:
    """The map with the greatest mean cosine, from a start A, by reweighted least squares; never worse than the start.

    The step is halved, up to five times, where the whole of it loses. The scale of A is that of mean |A v| = 1.
    """
    A, cosine = _scaled(data, A)
    cosines = [cosine]
    for _ in range(turns):
        target = _reweighted(data, A)
        for step in STEPS:
            new, cosine = _scaled(data, A + step * (target - A))
            if cosine > cosines[-1]:
                break
        if not cosine > cosines[-1]:
            break
        A = new
        cosines.append(cosine)
        if cosine - cosines[-2] < rtol:
            break
    return Aligned(A, tuple(cosines))


def mean_cosine(data: Directions, A: Float[Tensor, "p d"]) -> float:
    """E cos(A v, u)."""
    return float((unit_rows(data.V @ A.mT) * data.U).sum(1).mean())


def _scaled(data: Directions, A: Float[Tensor, "p d"]) -> tuple[Float[Tensor, "p d"], float]:
    """A at mean |A v| = 1, and its mean cosine."""
    W = data.V @ A.mT
    s = W.norm(dim=1).clamp_min(torch.finfo(W.dtype).tiny)
    return A / s.mean(), float(((W * data.U).sum(1) / s).mean())


def _reweighted(data: Directions, A: Float[Tensor, "p d"]) -> Float[Tensor, "p d"]:
    """A + (Σ u vᵀ/s − A Σ c/s² v vᵀ) M⁻¹: with M = Σ c/s² v vᵀ the weighted least squares of the formula.

    In M a cosine counts as 1/20 at least. Then M is positive definite, the step goes uphill (the bracket is the
    gradient of the sum of cosines), and where it ends the gradient is zero all the same.
    """
    V, U, W = data.V, data.U, data.V @ A.mT
    s = W.norm(dim=1, keepdim=True)
    s = s.clamp_min(RTOL_SCALE * float(s.mean()))
    c = (W * U).sum(1, keepdim=True) / s
    slope = V.mT @ ((U - c * W / s) / s)
    M = V.mT @ (V * (c.clamp_min(LEAST_COSINE) / s.square()))
    return A + torch.cholesky_solve(slope, torch.linalg.cholesky(damped(M, data.ridge))).mT

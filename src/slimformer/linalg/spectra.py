"""Singular values, and the few numbers that say how fast they fall.

For σ₁ ≥ … ≥ σ_n ≥ 0 and p_i = σ_i² / Σ σ²:

    energy at k         Σ_{i≤k} σ_i² / Σ σ²          what the best approximation of rank k keeps (Eckart & Young, 1936)
    rank at share s     the least k with energy ≥ s
    effective rank      exp(−Σ p_i log p_i)          n for a flat spectrum, 1 for rank one (Roy & Vetterli, 2007)
    stable rank         Σ σ² / σ₁²                   never above the rank (Rudelson & Vershynin, 2007)

With `power=1` the same for σ in place of σ². Σσ is the error of nothing, and is here because figures of attention are
drawn with it (see docs/methods/spectra.md).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

RTOL = 1e-8  # of σ₁: what a Gram matrix in double precision can tell from zero


def singular_values(W: Float[Tensor, "*b m n"]) -> Float[Tensor, "*b k"]:
    """σ of W, largest first, in double precision, from the smaller Gram matrix. Below 10⁻⁸ σ₁ they are rounding.

    Cost m n min(m, n) multiplications and O(min(m, n)³): a tenth of the time of an SVD.
    """
    W = W.double()
    return gram_values(W @ W.mT if W.shape[-2] <= W.shape[-1] else W.mT @ W)


def gram_values(G: Float[Tensor, "*b d d"]) -> Float[Tensor, "*b d"]:
    """σ = √λ of a Gram matrix, largest first; eigenvalues below zero, which are rounding, count as zero."""
    return torch.linalg.eigvalsh(G.double()).flip(-1).clamp_min(0).sqrt()


def product_values(A: Float[Tensor, "*b d D"], B: Float[Tensor, "*b d D"]) -> Float[Tensor, "*b k"]:
    """σ of AᵀB, at most d of them, without forming D × D: with Aᵀ = Q R and Bᵀ = P S they are those of R Sᵀ.

    Cost O(D d²).
    """
    if A.shape[-2] == 0:
        return A.new_zeros(A.shape[:-1], dtype=torch.float64)
    R, S = (torch.linalg.qr(X.double().mT, mode="r").R for X in (A, B))
    return torch.linalg.svdvals(R @ S.mT)


def energies(σ: Float[Tensor, "*b n"], *, power: int = 2) -> Float[Tensor, "*b n"]:
    """Σ_{i≤k} σ_i^power over the sum of all, k = 1 … n; 1 where there is nothing at all."""
    total = σ.double().pow(power).cumsum(-1)
    whole = total[..., -1:]
    return torch.where(whole > 0, total / whole.clamp_min(torch.finfo(torch.float64).tiny), torch.ones_like(total))


def rank_at(σ: Float[Tensor, "*b n"], share: float) -> Float[Tensor, "*b"]:
    """The least k whose energy Σσ² reaches `share`, as a float, so that heads can be averaged."""
    return (energies(σ) < share * (1 - 1e-12)).sum(-1).double() + 1


def effective_rank(σ: Float[Tensor, "*b n"], *, power: int = 2) -> Float[Tensor, "*b"]:
    """exp of the entropy of σ^power / Σ σ^power."""
    p = σ.double().pow(power)
    p = p / p.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.exp(-torch.xlogy(p, p).sum(-1))


def stable_rank(σ: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Σ σ² / σ₁²; 1 where there is nothing at all."""
    square = σ.double().square()
    first = square[..., 0]
    return torch.where(first > 0, square.sum(-1) / first.clamp_min(torch.finfo(torch.float64).tiny), 1.0)

"""How far a head's scores are from symmetric, and what the nearest symmetric ones would cost.

A head scores a query x and a key y by xᵀG y, G = W_qᵀ W_k (D × D, rank ≤ d). G = S + A with S = (G + Gᵀ)/2 symmetric
and A = (G − Gᵀ)/2 skew, and for every symmetric X

    ‖G − X‖² = ‖A‖² + ‖S − X‖².

So S is the nearest symmetric form, and the asymmetry ‖A‖ / ‖G‖ = ‖G − Gᵀ‖ / 2‖G‖ *is* its relative error: 0 for a
symmetric head, 1 for a skew one, √½ ≈ 0.71 for independent random W_q and W_k. S has up to 2 d eigenvalues λ, and a
head of width d can hold d of them, so two more errors matter:

    symmetric, rank d    the d eigenvalues largest in size are kept        W_k = ± W_q, row by row
    tied                 the d largest above zero are kept                 W_k = W_q: one matrix instead of two

Under the data (queries with second moments M, keys with C) the error of the scores is tr(Δᵀ M Δ C). With T such that
C = T Tᵀ and M = T diag(m) Tᵀ, and G′ = Tᵀ G T, the best symmetric form is not S but, elementwise,

    X′_ij = (m_i G′_ij + m_j G′_ji) / (m_i + m_j),      error Σ_ij m_i (G′_ij − X′_ij)².

Cost O(D d²) for a head from weights, O(D³) for a layer and O(d D²) for a head under the data.
Reference: symmetric and skew parts of trained W_qk: Saponati et al., arXiv 2502.10927; their score is 1 − 2 asymmetry².
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.damped import damped

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class SymmetryErrors:
    """Relative errors ‖G − X‖ / ‖G‖ for each head."""

    asymmetry: Float[Tensor, " h"]  # X the nearest symmetric form, whatever its rank
    symmetric: Float[Tensor, " h"]  # of rank d
    tied: Float[Tensor, " h"]  # of rank d and positive: W_k = W_q


def symmetry_errors(W_q: Float[Tensor, "h d D"], W_k: Float[Tensor, "h d D"]) -> SymmetryErrors:
    """All three, from weights alone. Cost O(h D d²)."""
    h, d, _ = W_q.shape
    if h == 0 or d == 0:
        nothing = W_q.new_zeros(h, dtype=torch.float64)
        return SymmetryErrors(nothing, nothing, nothing)
    R = torch.linalg.qr(torch.cat([W_q, W_k], dim=1).double().mT, mode="r").R  # h × min(D, 2d) × 2d
    half = R[..., :d] @ R[..., d:].mT  # G in the basis of both row spaces
    λ = torch.linalg.eigvalsh((half + half.mT) / 2)
    whole = half.square().sum((1, 2)).clamp_min(TINY)
    by_size = λ.square().sort(dim=1, descending=True).values
    positive = λ.clamp_min(0).square().sort(dim=1, descending=True).values
    energies = (by_size.sum(1), by_size[:, :d].sum(1), positive[:, :d].sum(1))
    return SymmetryErrors(*((1 - part / whole).clamp(0, 1).sqrt() for part in energies))


def shared_basis(
    M: Float[Tensor, "D D"], C: Float[Tensor, "D D"], *, ridge: float = 1e-6
) -> tuple[Float[Tensor, "D D"], Float[Tensor, " D"]]:
    """T and m ≥ 0 with C = T Tᵀ and M = T diag(m) Tᵀ, C damped relative to its diagonal. Cost O(D³)."""
    L = torch.linalg.cholesky(damped(C.double(), ridge))
    half = torch.linalg.solve_triangular(L, M.double(), upper=False)
    both = torch.linalg.solve_triangular(L, half.mT, upper=False)
    m, U = torch.linalg.eigh((both + both.mT) / 2)
    return L @ U, m.clamp_min(0)


def symmetry_error_on_data(
    W_q: Float[Tensor, "h d D"], W_k: Float[Tensor, "h d D"], T: Float[Tensor, "D D"], m: Float[Tensor, " D"]
) -> Float[Tensor, " h"]:
    """Relative error √(Σ m_i Δ_ij² / Σ m_i G_ij²) of the scores of the best symmetric form. Cost O(h d D²)."""
    rows, columns = m[:, None], m[None, :]
    weight = (rows + columns).clamp_min(TINY)
    errors = []
    for Q, K in zip(W_q.double(), W_k.double(), strict=True):
        G = (Q @ T).mT @ (K @ T)
        left = columns / weight * (G - G.mT)  # G_ij − X_ij
        errors.append(((rows * left.square()).sum() / (rows * G.square()).sum().clamp_min(TINY)).sqrt())
    return torch.stack(errors) if errors else W_q.new_zeros(0, dtype=torch.float64)

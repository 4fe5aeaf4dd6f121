"""How far the scores of trained heads are from simpler ones, under the data: symmetric, of half the rank, one for all.

A head scores a query x and a key y by xᵀG y, G = W_qᵀ W_k. With queries of second moments M = T diag(m) Tᵀ and keys of
C = T Tᵀ (`linalg.symmetry.shared_basis`) the mean square of the scores of G is ‖G̃‖², G̃ = Q̃ᵀ K̃ with Q̃ = W_q T √m and
K̃ = W_k T. So in that basis every question is one about a matrix:

    symmetric      ‖G − X‖ over symmetric X           `symmetry_error_on_data`; weights alone: the skew part
    half rank      √(Σ_{i>r} σ_i²),  r = ⌈d/2⌉        singular values of G̃ (Eckart & Young, 1936)
    one for all    √(Σ_h ‖G̃_h − Ḡ‖²), Ḡ = mean G̃_h    one W_qk for all heads of a layer, what a single head would have

each over ‖G̃‖. Queries and keys collapsed into one product lose nothing: a head *is* its G. What heads that learnt
nothing would give (Gaussian W_q, W_k of the same shape, the same data) stands beside every error: the data alone make
some scores easy. Cost O(h d D²) and O(h² d² D).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.spectra import product_values
from slimformer.linalg.symmetry import TINY, symmetry_error_on_data


@dataclass(frozen=True)
class ScoreForms:
    """Relative errors for each head; that of one form for all heads is one number."""

    symmetric: Float[Tensor, " h"]
    half_rank: Float[Tensor, " h"]
    one_for_all: float


def score_forms(
    W_q: Float[Tensor, "h d D"], W_k: Float[Tensor, "h d D"], T: Float[Tensor, "D D"], m: Float[Tensor, " D"]
) -> ScoreForms:
    """All three, in the metric of T and m; an identity and ones for weights alone."""
    Q, K = W_q.double() @ T * m.sqrt(), W_k.double() @ T
    return ScoreForms(symmetry_error_on_data(W_q, W_k, T, m), half_rank_error(Q, K), one_for_all_error(Q, K))


def half_rank_error(Q: Float[Tensor, "h d D"], K: Float[Tensor, "h d D"]) -> Float[Tensor, " h"]:
    """√(Σ_{i>r} σ_i² / Σ σ_i²) of Qᵀ K, r = ⌈d/2⌉."""
    h, d, _ = Q.shape
    if h == 0 or d == 0:
        return Q.new_zeros(h)
    energy = product_values(Q, K).square()
    return (energy[:, (d + 1) // 2 :].sum(1) / energy.sum(1).clamp_min(TINY)).sqrt()


def one_for_all_error(Q: Float[Tensor, "h d D"], K: Float[Tensor, "h d D"]) -> float:
    """√(1 − h ‖Ḡ‖² / Σ ‖G_h‖²). ⟨G_a, G_b⟩ = Σ (Q_a Q_bᵀ) ∘ (K_a K_bᵀ), so no D × D matrix is made."""
    if not len(Q):
        return 0.0
    inner = (torch.einsum("ard,bsd->abrs", Q, Q) * torch.einsum("ard,bsd->abrs", K, K)).sum((2, 3))
    whole = inner.diagonal().sum().clamp_min(TINY)
    return float((1 - inner.sum() / (len(Q) * whole)).clamp(0, 1).sqrt())


def null_forms(heads: int, rank: int, T: Float[Tensor, "D D"], m: Float[Tensor, " D"], *, seed: int = 0) -> ScoreForms:
    """The same of heads with Gaussian weights, one draw."""
    generator = torch.Generator().manual_seed(seed)
    W_q, W_k = torch.randn(2, heads, rank, len(m), generator=generator, dtype=torch.float64).unbind()
    return score_forms(W_q, W_k, T.cpu(), m.cpu())

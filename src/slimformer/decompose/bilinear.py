"""Ranks of queries and keys without rotary positions: the scores are a bilinear form, and it is cut where it is weak.

A head compares q = W_q x + b_q with k = W_k x + b_k by s = qᵀk (times a scale that stays). q ← N q, k ← M k with
NᵀM = I changes nothing, so N and M can be chosen such that coordinates come in the order of their worth; rank r keeps
the first r. What is added to all keys alike adds the same to all scores of a query, and softmax does not see it: b_k
falls out, and keys are centred. A query's bias stays, inside q. For a query and a key drawn independently

    E |qᵀ(I − X)k|² = ‖L_qᵀ (I − X) L_k‖²,     L_q L_qᵀ = E q qᵀ,   L_k L_kᵀ = Cov k,

so by Eckart & Young the best X of rank r comes from the SVD L_qᵀ L_k = A Σ Bᵀ, and the error is Σ_{i>r} σ_i²:

    N = Σ^½ Aᵀ L_q⁻¹,    M = Σ^½ Bᵀ L_k⁻¹,    X_r = N_{:r}ᵀ M_{:r}.

Query heads that share a key head share N: for given keys M k the best N does not depend on the head, and their E q qᵀ
add up. `keys` may be any second moments that say what a change of scores does. Those of `response` differ from head to
head of a group; then the sum Σ_h C_qh ⊗ C_kh is replaced by the nearest single product. One head to a group, or keys
with common moments, is exact.

Cost O(K d³) after the moments. Reference: Eckart & Young (1936); Van Loan & Pitsianis (1993) for the nearest Kronecker
product; Meng et al., CLOVER (arXiv 2411.17426) and A³ (arXiv 2505.12942) for heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from slimformer.decompose.reduction import Curve
from slimformer.linalg.damped import damping

SWEEPS = 20  # of the nearest Kronecker product: alternating least squares on a few numbers


@dataclass(frozen=True)
class Scores:
    """For each query head E q qᵀ, and second moments of the keys it sees: E |qᵀΔk|² = tr(Δᵀ C_q Δ C_k)."""

    queries: Float[Tensor, "h d d"]
    keys: Float[Tensor, "h d d"]


@dataclass(frozen=True)
class Gauge:
    """q ← N q, k ← M k for every key head: nothing changes, and coordinates are in the order of their worth."""

    N: Float[Tensor, "kv d d"]
    M: Float[Tensor, "kv d d"]


@dataclass(frozen=True)
class ScoreRanks:
    """q_h ← N_h q_h, k_g ← M_g k_g: W_q and b_q, W_k and b_k from the left. The scale of the scores stays what it was.

    With rotary positions both are then turned: pair (i, i + r/2) of key head g as plane `planes[g, i]` was.
    """

    N: Float[Tensor, "h r d"]
    M: Float[Tensor, "kv r d"]
    planes: Int[Tensor, "kv p"] | None = None


def score_gauge(scores: Scores, *, group: int, ridge: float) -> Gauge:
    """The N and M of every key head. `ridge` is relative, on both moments. Cost O(K d³)."""
    N, M = [], []
    for C_q, C_k in zip(scores.queries.split(group), scores.keys.split(group), strict=True):
        n, m, _ = balanced(*nearest_product(C_q, C_k), ridge=ridge)
        N.append(n)
        M.append(m)
    return Gauge(torch.stack(N), torch.stack(M))


def score_curve(gauge: Gauge, fit: Scores, held: Scores) -> Curve:
    """Mean squared error of the scores, summed over heads, at every rank r = 0 … d.

    In the coordinates of the gauge dropping i ≥ r leaves Σ_{i,j ≥ r} (E q qᵀ)_ij (E k kᵀ)_ij, for the moments of any
    data. `floor` is what ranks of their own, one for every query head, would leave. Cost O(h d³).
    """
    d = gauge.N.shape[-1]
    errors = [_tails(_on_gauge(gauge, scores)) for scores in (fit, held)]
    σ2 = [balanced(C_q, C_k, ridge=0.0)[2].square() for C_q, C_k in zip(held.queries, held.keys, strict=True)]
    floor = _tails(torch.diag_embed(torch.stack(σ2)))
    sizes = tuple(range(d + 1))
    fit_left, held_left, floor_left = (tuple(e.sum(0).tolist()) for e in (*errors, floor))
    # a rank is one coordinate of every head
    return Curve("bilinear", tuple(range(d)), sizes, sizes, fit_left, held_left, floor_left)


def score_ranks(gauge: Gauge, r: int, *, group: int) -> ScoreRanks:
    """The first r coordinates of the gauge, for every query head and every key head."""
    return ScoreRanks(gauge.N[:, :r].repeat_interleave(group, dim=0), gauge.M[:, :r])


def on_heads(S: Float[Tensor, "n r d"], W: Float[Tensor, "nd ..."]) -> Float[Tensor, "nr ..."]:
    """S_h on the rows of every head of a projection, or of its bias."""
    n, r, d = S.shape
    return (S @ W.to(S).reshape(n, d, -1)).reshape(n * r, *W.shape[1:])


def balanced(
    C_q: Inexact[Tensor, "d d"], C_k: Inexact[Tensor, "d d"], *, ridge: float
) -> tuple[Inexact[Tensor, "d d"], Inexact[Tensor, "d d"], Float[Tensor, " d"]]:
    """N, M and σ with NᴴM = I and N C_q Nᴴ = M C_k Mᴴ = diag σ, σ descending; real or complex. Cost O(d³)."""
    R_q, inv_q = _root(C_q, ridge)
    R_k, inv_k = _root(C_k, ridge)
    A, σ, Bh = torch.linalg.svd(R_q.mH @ R_k)
    return σ.sqrt()[:, None] * (A.mH @ inv_q), σ.sqrt()[:, None] * (Bh @ inv_k), σ


def nearest_product(
    A: Inexact[Tensor, "g d d"], B: Inexact[Tensor, "g d d"]
) -> tuple[Inexact[Tensor, "d d"], Inexact[Tensor, "d d"]]:
    """The a ⊗ b nearest to Σ_h A_h ⊗ B_h: a = Σ_h α_h A_h, b = Σ_h β_h B_h with all weights positive. Cost O(g² d²)."""
    AA, BB = ((X.flatten(1).conj() @ X.flatten(1).mT).real for X in (A, B))
    α = β = AA.new_ones(len(A))
    for _ in range(SWEEPS if len(A) > 1 else 0):
        α = BB @ β / (β @ BB @ β).clamp_min(torch.finfo(BB.dtype).tiny)
        β = AA @ α / (α @ AA @ α).clamp_min(torch.finfo(AA.dtype).tiny)
    return torch.einsum("h,hij->ij", α.to(A), A), torch.einsum("h,hij->ij", β.to(B), B)


def _on_gauge(gauge: Gauge, scores: Scores) -> Float[Tensor, "h d d"]:
    N, M = (X.repeat_interleave(len(scores.queries) // len(X), dim=0) for X in (gauge.N, gauge.M))
    return (N @ scores.queries @ N.mT) * (M @ scores.keys @ M.mT)


def _tails(A: Float[Tensor, "h d d"]) -> Float[Tensor, "h d1"]:
    """Σ_{i,j ≥ r} A_ij for r = 0 … d, A symmetric."""
    added = A.diagonal(dim1=1, dim2=2) + 2 * A.triu(1).sum(2)
    left = added.flip(1).cumsum(1).flip(1).clamp_min(0)
    return torch.cat([left, left.new_zeros(len(left), 1)], dim=1)


def _root(C: Inexact[Tensor, "d d"], ridge: float) -> tuple[Inexact[Tensor, "d d"], Inexact[Tensor, "d d"]]:
    """R and R⁻¹ with R Rᴴ = C + λI; eigenvalues below zero, which are rounding, count as zero."""
    λ, U = torch.linalg.eigh((C + C.mH) / 2)
    s = (λ.clamp_min(0) + damping(C.real, ridge)).sqrt()
    return U * s, (U / s).mH

"""Scores from the moments of x, and planes mixed in groups: ways to cut queries and keys that no recipe takes.

`response` sees what scores do to the output and is better (docs/methods/attention-ranks.md); these see scores alone.
Where frequencies are so near each other that |θ_f − θ_g| L ≤ ε up to the length L, planes may be mixed as if they
turned together, at an error of at most ε |q| |k|: a complex SVD inside the group (`mixed`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from slimformer.decompose.bilinear import ScoreRanks, Scores, balanced, nearest_product
from slimformer.decompose.rotary import real_form
from slimformer.linalg.moments import Moments


def score_moments(
    x: Moments,
    W_q: Float[Tensor, "hd D"],
    b_q: Float[Tensor, " hd"] | None,
    W_k: Float[Tensor, "kd D"],
    *,
    heads: int,
    scale: float = 1.0,
) -> Scores:
    """E q qᵀ with bias and scale, and Cov k, from the moments of the x that the projections read.

    One mean is taken off all keys, where softmax would allow one for every sequence: C_k is too large by the covariance
    of the sequences' means. Cost O(D² (H + K) d).
    """
    d = len(W_q) // heads
    mean = W_q.double() @ x.mean + (0 if b_q is None else b_q.double())
    Q = diagonal_blocks(W_q, x.second(centred=True), d) + _outer(mean.reshape(heads, d))
    K = diagonal_blocks(W_k, x.second(centred=True), d)
    return Scores(scale**2 * Q, K.repeat_interleave(heads // len(K), dim=0))


def energy_orders(scores: Scores, *, kv: int) -> list[list[int]]:
    """Planes of every one of `kv` groups of heads by E |q_f|² E |k_f|², largest first: the customary order."""
    Q, K = (_halves(C.diagonal(dim1=1, dim2=2)).sum(1) for C in (scores.queries, scores.keys))
    energy = (Q * K).reshape(kv, -1, Q.shape[1]).sum(1)
    return [order.tolist() for order in energy.argsort(dim=1, descending=True)]


def rotary_moments(
    x: Moments,
    queries: tuple[Float[Tensor, "hd D"], Float[Tensor, " hd"] | None],
    keys: tuple[Float[Tensor, "kd D"], Float[Tensor, " kd"] | None],
    frequencies: Float[Tensor, " n"],
    *,
    length: int,
    scale: float = 1.0,
) -> Float[Tensor, "h d d"]:
    """Second moments of (Re s_f, Im s_f) from those of x, for weights and biases of queries and keys.

    A query at the end of a window of `length` tokens and keys all over it, drawn independently of each other and of
    their positions; centred over the keys of a query, because softmax does not see what is common to them.
    """
    d = 2 * len(frequencies)
    (Q, _), (K, μ) = (_projected(x, W, b, d) for W, b in (queries, keys))
    repeat = len(Q) // len(K)
    K, μ = K.repeat_interleave(repeat, dim=0), μ.repeat_interleave(repeat, dim=0)
    return scale**2 * plane_moments(Q, K, μ, frequencies, length=length)


def plane_moments(
    Q: Float[Tensor, "h d d"],
    K: Float[Tensor, "h d d"],
    μ: Float[Tensor, "h d"],
    frequencies: Float[Tensor, " n"],
    *,
    length: int,
) -> Float[Tensor, "h d d"]:
    """`rotary_moments` from second moments (about zero) of queries and keys, and the mean key, all before rotation.

    With φ(ω) the mean of e^{iω(j − i)} over the keys of a window and independent q, k,

        E s_f s̄_g = E q̄_f q_g (E k_f k̄_g φ(θ_f − θ_g) − μ_f φ(θ_f) conj(μ_g φ(θ_g))),

    and E s_f s_g likewise. Slow planes have φ ≈ 1: their keys are centred; fast ones φ ≈ 0: they are not.
    """
    θ = frequencies.double()
    m = torch.complex(*_halves(μ).unbind(1)) * _mean_turn(θ, length)
    Γ_q, Π_q, Γ_k, Π_k = (part(C) for C in (Q, K) for part in (hermitian, _symmetric))
    same = Γ_q.conj() * (Γ_k * _mean_turn(θ[:, None] - θ, length) - m[:, :, None] * m[:, None, :].conj())
    both = Π_q.conj() * (Π_k * _mean_turn(θ[:, None] + θ, length) - m[:, :, None] * m[:, None, :])
    across = (both - same).imag / 2  # E Re s_f Im s_g
    rows = [[(same + both).real / 2, across], [across.mT, (same - both).real / 2]]
    return torch.cat([torch.cat(row, dim=2) for row in rows], dim=1)


def frequency_groups(frequencies: Float[Tensor, " n"], *, length: int, tolerance: float) -> list[list[int]]:
    """Planes whose angles differ by no more than `tolerance` up to `length`: neighbours, beginning with the slowest."""
    groups: list[list[int]] = []
    for f in frequencies.argsort().tolist():
        if groups and float(frequencies[f] - frequencies[groups[-1][0]]) * length <= tolerance:
            groups[-1].append(f)
        else:
            groups.append([f])
    return groups


def mixed(
    scores: Scores, frequencies: Float[Tensor, " n"], groups: Sequence[Sequence[int]], *, kv: int, ridge: float
) -> tuple[ScoreRanks, Float[Tensor, " n"]]:
    """Planes mixed inside groups so that they come in the order of their worth there, and the frequencies to turn at.

    Full size: a rewrite with an error of at most |θ_f − θ̄| L for plane f, where θ̄ is the mean of its group. Planes are
    selected afterwards, as ever, with moments of the rewritten queries and keys.
    """
    h, n = len(scores.queries), len(frequencies)
    N, M = (torch.eye(n, dtype=torch.complex128).repeat(kv, 1, 1) for _ in range(2))
    θ = frequencies.double().clone()
    Γ_q, Γ_k = hermitian(scores.queries).split(h // kv), hermitian(scores.keys).split(h // kv)
    for F in (torch.tensor(group) for group in groups if len(group) > 1):
        block = (F[:, None], F)
        θ[F] = θ[F].mean()
        for g in range(kv):
            C_q, C_k = nearest_product(Γ_q[g][:, *block], Γ_k[g][:, *block])
            N[g][block], M[g][block], _ = balanced(C_q, C_k, ridge=ridge)
    return ScoreRanks(real_form(N).repeat_interleave(h // kv, dim=0), real_form(M), torch.arange(n).repeat(kv, 1)), θ


def hermitian(C: Float[Tensor, "h d d"]) -> Complex[Tensor, "h n n"]:
    """E c cᴴ of the complex coordinates c = x_f + i x_{f + d/2} from E x xᵀ."""
    (rr, ri), (ir, ii) = _quarters(C)
    return torch.complex(rr + ii, ir - ri)


def diagonal_blocks(W: Float[Tensor, "hd D"], C: Float[Tensor, "D D"], d: int) -> Float[Tensor, "h d d"]:
    """W_h C W_hᵀ for every head."""
    heads = W.double().reshape(-1, d, W.shape[1])
    return heads @ C @ heads.mT


def _symmetric(C: Float[Tensor, "h d d"]) -> Complex[Tensor, "h n n"]:
    """E c cᵀ."""
    (rr, ri), (ir, ii) = _quarters(C)
    return torch.complex(rr - ii, ir + ri)


def _quarters(C: Float[Tensor, "h d d"]) -> list[tuple[Tensor, Tensor]]:
    n = C.shape[1] // 2
    return [(rows[:, :, :n], rows[:, :, n:]) for rows in (C[:, :n], C[:, n:])]


def _halves(x: Float[Tensor, "h d"]) -> Float[Tensor, "h 2 n"]:
    return x.reshape(len(x), 2, -1)


def _mean_turn(ω: Float[Tensor, "*n"], length: int) -> Complex[Tensor, "*n"]:
    """φ(ω) = mean of e^{−iωm} over m = 0 … length − 1."""
    half = ω / 2
    size = torch.where(half.abs() < 1e-9, 1.0, (half * length).sin() / (length * half.sin()))
    return torch.polar(size.abs(), -half * (length - 1) + torch.pi * (size < 0))


def _projected(
    x: Moments, W: Float[Tensor, "hd D"], b: Float[Tensor, " hd"] | None, d: int
) -> tuple[Float[Tensor, "h d d"], Float[Tensor, "h d"]]:
    """Second moments about zero, and means, of the heads of W x + b."""
    mean = (W.double() @ x.mean + (0 if b is None else b.double())).reshape(-1, d)
    return diagonal_blocks(W, x.second(centred=True), d) + mean[:, :, None] * mean[:, None, :], mean


def _outer(v: Float[Tensor, "h d"]) -> Float[Tensor, "h d d"]:
    return v[:, :, None] * v[:, None, :]

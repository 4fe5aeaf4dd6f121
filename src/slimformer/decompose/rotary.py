"""Ranks of queries and keys with rotary positions: whole planes stay or go.

Coordinates f and f + d/2 of a head form a plane; as complex numbers q_f, k_f they are turned by e^{iθ_f p} at position
p, and s = Σ_f Re(q̄_f k_f e^{iθ_f (j − i)}). What may be moved between q and k must commute with all these rotations:
a complex number for every plane, no more. So planes are selected, and those kept are multiplied by complex numbers α,
a scale and a turn, which go into W_q:

    Σ_f s_f ≈ Σ_{f ∈ J} Re(α_f s_f^ℂ).

This is a reader refitted on selected coordinates once more (`reduction`). The width has a pair of coordinates for each
plane, what Re s_f and Im s_f do; the reader is (1 … 1, 0 … 0); and of the data only their second moments A (d × d, one
for each query head) are needed, either what scores do to the output (`response`, best) or the scores themselves, from
the moments of x (`rotary_moments`). α is each head's own, the planes are those of its key head, or of the whole layer.

Planes are given up one at a time, always the one that costs least after the refit, Δ_f = Σ_h v_fᵀ (H_ff)⁻¹ v_f with
2 × 2 blocks. Where frequencies are so near each other that |θ_f − θ_g| L ≤ ε up to the length L, planes may be mixed as
if they turned together, at an error of at most ε |q| |k|: a complex SVD inside the group (`mixed`).

A module turns the kept planes only: the same for all heads (`shared`), or other cosines and sines for every key head
and the query heads it serves. After a norm of q and k, N and M act behind it: scores and cached keys shrink, the
projections do not, because the norm needs all of their rows.

Reference: Su et al., RoFormer (2021); Lin et al., MoDeGPT (2025) for pairs of rotary columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from slimformer.decompose.bilinear import ScoreRanks, Scores, balanced, diagonal_blocks, nearest_product
from slimformer.decompose.elimination import RIDGE
from slimformer.decompose.low_rank import FLOOR
from slimformer.decompose.reduction import Curve, Width, curve, select
from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments


def planes(
    fit: Float[Tensor, "h d d"], held: Float[Tensor, "h d d"], *, kv: int, ridge: float, shared: bool = True
) -> Curve:
    """The error left when every key head keeps r of its planes, r = 0 … d/2, after the rescaling of the kept.

    Unit g d/2 + f is plane f of key head g; sizes are multiples of the number of key heads. Cost O(h d³).
    """
    order = elimination_orders(fit, kv=1 if shared else kv, ridge=ridge)
    return plane_curve(fit, held, order * (kv // len(order)), ridge=ridge)


def plane_curve(
    fit: Float[Tensor, "h d d"], held: Float[Tensor, "h d d"], orders: Sequence[Sequence[int]], *, ridge: float
) -> Curve:
    """As `planes`, for given orders of the planes of every key head."""
    kv, n = len(orders), fit.shape[1] // 2
    group = len(fit) // kv
    curves = [
        curve(_width(A, B), "rotary", orders[h // group], ridge=ridge)
        for h, (A, B) in enumerate(zip(fit, held, strict=True))
    ]
    left = [torch.tensor([getattr(c, part) for c in curves]).sum(0) for part in ("fit", "held", "floor")]
    units = chain.from_iterable(zip(*([g * n + f for f in order] for g, order in enumerate(orders)), strict=True))
    return Curve(
        "rotary", tuple(units), tuple(range(0, kv * n + 1, kv)), (0,) + (kv,) * n, *(tuple(e.tolist()) for e in left)
    )


def plane_ranks(fit: Float[Tensor, "h d d"], order: Sequence[int], size: int, *, kv: int, ridge: float) -> ScoreRanks:
    """The first `size` units of a curve's order kept, planes ascending: W_q gets ᾱ, W_k only loses rows."""
    h, d, _ = fit.shape
    n = d // 2
    J = torch.tensor([sorted(u % n for u in order[:size] if u // n == g) for g in range(kv)], dtype=torch.long)
    α = torch.stack([_factors(A, J[i * kv // h], ridge) for i, A in enumerate(fit)])
    chosen = torch.eye(n, dtype=α.dtype)[J]  # kv × r × n
    N = α.conj()[:, :, None] * chosen.repeat_interleave(h // kv, dim=0)
    return ScoreRanks(real_form(N), real_form(chosen), J)


def elimination_orders(A: Float[Tensor, "h d d"], *, kv: int, ridge: float) -> list[list[int]]:
    """Planes of every one of `kv` groups of heads, best first, by backward elimination. Cost O(h d³)."""
    return [_eliminated(heads, ridge) for heads in A.split(len(A) // kv)]


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


def real_form(N: Complex[Tensor, "h a b"]) -> Float[Tensor, "h 2*a 2*b"]:
    """A complex map of planes as a real one of coordinates, halves as transformers lays them: all real parts first."""
    return torch.cat([torch.cat([N.real, -N.imag], dim=2), torch.cat([N.imag, N.real], dim=2)], dim=1)


def hermitian(C: Float[Tensor, "h d d"]) -> Complex[Tensor, "h n n"]:
    """E c cᴴ of the complex coordinates c = x_f + i x_{f + d/2} from E x xᵀ."""
    (rr, ri), (ir, ii) = _quarters(C)
    return torch.complex(rr + ii, ir - ri)


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


def _pairs(d: int) -> Int[Tensor, " d"]:
    """Coordinates plane by plane: 0, d/2, 1, d/2 + 1, …"""
    return torch.arange(d).reshape(2, -1).mT.flatten()


def _width(fit: Float[Tensor, "d d"], held: Float[Tensor, "d d"]) -> Width:
    """Planes of one head as units of two coordinates, read by the sum of the first of each."""
    d = len(fit)
    P = _pairs(d)
    W = (torch.arange(d) % 2 == 0).double()[None]
    one, other = (Moments(d, A.new_zeros(d), d * A[P][:, P]) for A in (fit.double(), held.double()))
    return Width("rotary planes", W, one, other, unit=2)


def _factors(A: Float[Tensor, "d d"], J: Int[Tensor, " r"], ridge: float) -> Complex[Tensor, " r"]:
    """α of the kept planes J of one head: Re(α s) = a Re s + b Im s for α = a − ib."""
    width = _width(A, A)
    a = (width.W @ select(width, J.tolist(), len(J), ridge=ridge).E).reshape(-1, 2)
    return torch.complex(a[:, 0], -a[:, 1])


def _eliminated(A: Float[Tensor, "h d d"], ridge: float) -> list[int]:
    """Planes, best first, for heads that must keep the same ones."""
    d = A.shape[1]
    n = d // 2
    λ = max(min(ridge, RIDGE), FLOOR * d**0.5)
    H = torch.linalg.inv(torch.stack([damped(a, λ) for a in A.double()]))
    v = H.new_zeros(len(H), d)
    v[:, :n] = 1
    gone: list[int] = []
    while len(gone) < n:
        cost = _plane_costs(H, v)
        cost[gone] = torch.inf
        f = int(cost.argmin())
        J = [f, f + n]
        T = torch.linalg.solve(H[:, J][:, :, J], H[:, J])
        v, H = v - (v[:, None, J] @ T)[:, 0], H - H[:, :, J] @ T
        gone.append(f)
    return gone[::-1]


def _plane_costs(H: Float[Tensor, "h d d"], v: Float[Tensor, "h d"]) -> Float[Tensor, " n"]:
    """Δ_f = Σ_h v_fᵀ (H_ff)⁻¹ v_f, for all planes f at once."""
    n = v.shape[1] // 2
    diagonal = H.diagonal(dim1=1, dim2=2)
    a, c, b = diagonal[:, :n], diagonal[:, n:], H[:, :n, n:].diagonal(dim1=1, dim2=2)
    x, y = v[:, :n], v[:, n:]
    determinant = (a * c - b * b).clamp_min(torch.finfo(H.dtype).tiny)
    return ((c * x * x - 2 * b * x * y + a * y * y) / determinant).sum(0)


def turned(x: Float[Tensor, "*n d"], cos: Float[Tensor, "*m d"], sin: Float[Tensor, "*m d"]) -> Float[Tensor, "*n d"]:
    """Every plane (x_f, x_{f + d/2}) by its angle; cosines and sines are given for both halves."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin

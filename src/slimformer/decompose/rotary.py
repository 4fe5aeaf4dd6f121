"""Ranks of queries and keys with rotary positions: whole planes stay or go.

Coordinates f and f + d/2 of a head form a plane; as complex numbers q_f, k_f they are turned by e^{iθ_f p} at position
p, and s = Σ_f Re(q̄_f k_f e^{iθ_f (j − i)}). What may be moved between q and k must commute with all these rotations:
a complex number for every plane, no more. So planes are selected, and those kept are multiplied by complex numbers α,
a scale and a turn, which go into W_q:

    Σ_f s_f ≈ Σ_{f ∈ J} Re(α_f s_f^ℂ).

This is a reader refitted on selected coordinates once more (`reduction`). The width has a pair of coordinates for each
plane, what Re s_f and Im s_f do; the reader is (1 … 1, 0 … 0); and of the data only their second moments A (d × d, one
for each query head) are needed: what scores do to the output (`response`). α is each head's own, the planes are those
of its key head, or of the whole layer.

Planes are given up one at a time, always the one that costs least after the refit, Δ_f = Σ_h v_fᵀ (H_ff)⁻¹ v_f with
2 × 2 blocks.

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

from slimformer.decompose.bilinear import ScoreRanks
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


def real_form(N: Complex[Tensor, "h a b"]) -> Float[Tensor, "h 2*a 2*b"]:
    """A complex map of planes as a real one of coordinates, halves as transformers lays them: all real parts first."""
    return torch.cat([torch.cat([N.real, -N.imag], dim=2), torch.cat([N.imag, N.real], dim=2)], dim=1)


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

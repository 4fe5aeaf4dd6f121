"""Exact backward elimination: drop coordinates one at a time, each time the one whose loss hurts least.

A map W (m × d) reads x with second moments C. When the coordinates R are dropped and W is refitted by least squares on
the rest, the error grows; with H = (C + λI)⁻¹ restricted to the coordinates still there and V the refitted W, dropping
j costs exactly

    Δ_j = ‖v_j‖² / H_jj,     V ← V − v_j H_j: / H_jj,     H ← H − H_:j H_j: / H_jj.

Of V only M = VᵀV is needed, and with f = H_:j / √H_jj, c = M_:j / √H_jj both updates have one shape:

    H ← H − f fᵀ,     M ← M − f gᵀ − g fᵀ,     g = c − Δ_j f / 2.

They are delayed and applied in blocks, after which the arrays shrink to the coordinates still alive: O(d² (d + m)) in
all, and the inner loop only needs products with a few vectors.

Reference: Hassibi & Stork, Second order derivatives for network pruning (1993); Frantar & Alistarh (2022).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slimformer.linalg.damped import damped

BLOCK = 96


def eliminate(
    C: Float[Tensor, "d d"], W: Float[Tensor, "m d"], *, ridge: float
) -> tuple[Int[Tensor, " d"], Float[Tensor, " d"]]:
    """Order in which coordinates are worth keeping (best first), and what dropping each cost when it went."""
    H = _inverse(C, ridge)
    alive = torch.arange(len(C), device=C.device)
    del C  # wide layers: room for what follows
    M = W.double().mT @ W.double()
    gone = [alive[:0]]  # not empty lists: a width that was cut to nothing has an order, too
    costs = [H.new_zeros(0)]
    while len(alive):
        dropped, cost, F, G = _drop_block(H, M, min(BLOCK, len(alive)))
        gone.append(alive[dropped])
        costs.append(cost)
        is_left = torch.ones(len(alive), dtype=torch.bool, device=H.device)
        is_left[dropped] = False
        (is_left,) = is_left.nonzero(as_tuple=True)
        alive, F, G = alive[is_left], F[:, is_left], G[:, is_left]
        H = _shrunk(H, is_left).addmm_(F.mT, F, alpha=-1)
        M = _shrunk(M, is_left).addmm_(torch.cat([F, G]).mT, torch.cat([G, F]), alpha=-1)
    return torch.cat(gone).flip(0), torch.cat(costs).flip(0)


def _shrunk(A: Float[Tensor, "a a"], rows: Int[Tensor, " b"]) -> Float[Tensor, "b b"]:
    return A.index_select(0, rows).index_select(1, rows)


def _inverse(C: Float[Tensor, "d d"], ridge: float) -> Float[Tensor, "d d"]:
    """H = (C + λI)⁻¹. Where C is singular H_jj falls from 1/λ to its true size when a copy of j goes; for digits to be
    left of it, λ must be at least of the order √(ε d)."""
    floor = 4 * (torch.finfo(torch.float64).eps * len(C)) ** 0.5
    return torch.cholesky_inverse(torch.linalg.cholesky(damped(C.double(), max(ridge, floor))))


def _drop_block(
    H: Float[Tensor, "a a"], M: Float[Tensor, "a a"], n: int
) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"], Float[Tensor, "n a"], Float[Tensor, "n a"]]:
    """Drop n coordinates; return them, their costs, and F, G with H ← H − FᵀF and M ← M − FᵀG − GᵀF still to be
    applied."""
    a = len(H)
    F, G = H.new_zeros(n, a), H.new_zeros(n, a)
    h, q = H.diagonal().clone(), M.diagonal().clone()  # H_jj and ‖v_j‖², kept up to date
    tiny = torch.finfo(h.dtype).tiny
    dropped, cost = torch.empty(n, dtype=torch.long), H.new_empty(n)
    for t in range(n):
        j = int(torch.argmin(q / h))
        root = h[j].sqrt()
        dropped[t], cost[t] = j, q[j] / h[j]
        before = F[:t, j]
        f = (H[j] - before @ F[:t]) / root  # so that f fᵀ = H_:j H_j: / H_jj
        c = (M[j] - G[:t, j] @ F[:t] - before @ G[:t]) / root  # Vᵀ v_j / √H_jj
        g = c - f * (cost[t] / 2)
        F[t], G[t] = f, g
        q = (q - 2 * f * g).clamp_min_(0)
        h = (h - f.square()).clamp_min_(tiny)
        q[j], h[j] = torch.inf, 1.0
    return dropped, cost, F, G


def eliminate_blocks(
    C: Float[Tensor, "d d"],
    W: Float[Tensor, "m d"],
    *,
    unit: int,
    allowed: Callable[[list[int]], list[int]],
    ridge: float,
) -> list[int]:
    """As `eliminate`, for units of `unit` coordinates (heads): Δ_g = tr(V_g (H_gg)⁻¹ V_gᵀ).

    Of the units still there, `S`, only those in `allowed(S)` may go next. Returns the units, best first.
    """
    H = _inverse(C, ridge)
    V = W.double().clone()
    alive, gone = list(range(len(C) // unit)), []
    while alive:
        costs = {
            g: float((_columns(V, g, unit) @ _solve(H, g, unit, _columns(V, g, unit).mT)).trace())
            for g in allowed(alive)
        }
        g = min(costs, key=lambda i: costs[i])
        rows = slice(g * unit, (g + 1) * unit)
        update = _solve(H, g, unit, H[rows])
        V = V - _columns(V, g, unit) @ update
        H = H - H[:, rows] @ update
        alive.remove(g)
        gone.append(g)
    return gone[::-1]


def _columns(V: Float[Tensor, "m d"], g: int, unit: int) -> Float[Tensor, "m u"]:
    return V[:, g * unit : (g + 1) * unit]


def _solve(H: Float[Tensor, "d d"], g: int, unit: int, B: Float[Tensor, "u n"]) -> Float[Tensor, "u n"]:
    """(H_gg)⁻¹ B."""
    block = slice(g * unit, (g + 1) * unit)
    return torch.linalg.solve(H[block, block], B)

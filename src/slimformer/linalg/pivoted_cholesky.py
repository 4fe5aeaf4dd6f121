"""Greedy order of the coordinates of a Gram matrix.

Column-pivoted QR of X (n × d) picks at each step the column with the largest residual given those picked before.
Pivoted Cholesky of G = XᵀX picks the same columns, because the Schur complements of G are the residual Grams of X; it
costs O(k d²) whatever n is, where QR costs O(n d²) and needs X. |r_jj| of QR is the square root of the pivot.

Reference: Higham, Accuracy and Stability of Numerical Algorithms, §10.3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from scipy.linalg.lapack import dpstrf
from torch import Tensor

RTOL_RANK = 1e-13  # pivots below this share of the largest are rounding noise


def pivots(G: Float[Tensor, "d d"]) -> tuple[Int[Tensor, " d"], Float[Tensor, " d"]]:
    """Order of the coordinates and r, the size |r_jj| of each pivot; zero beyond the numerical rank.

    Coordinates beyond the rank follow in their old order: they are combinations of those before.
    """
    d = len(G)
    top = float(G.diagonal().max()) if d else 0.0
    if top <= 0:
        return torch.arange(d), torch.zeros(d, dtype=torch.float64)
    factor, order, rank, _ = dpstrf(G.double().cpu().numpy().T, lower=1, tol=RTOL_RANK * top)
    r = torch.from_numpy(factor).diagonal().clone()
    r[rank:] = 0
    order[rank:].sort()
    return torch.from_numpy(order).long() - 1, r


def constrained_pivots(
    G: Float[Tensor, "d d"], allowed: Callable[[list[int]], list[int]]
) -> tuple[Int[Tensor, " d"], Float[Tensor, " d"]]:
    """As `pivots`, but after the coordinates `J` only those in `allowed(J)` may come next. For few coordinates
    (heads)."""
    R = G.double().clone()
    J: list[int] = []
    r: list[float] = []
    while candidates := allowed(J):
        j = max(candidates, key=lambda i: float(R[i, i]))
        pivot = max(float(R[j, j]), 0.0)
        J.append(j)
        r.append(pivot**0.5)
        if pivot > RTOL_RANK * float(G.diagonal().max()):
            R -= torch.outer(R[:, j], R[j]) / pivot
    return torch.tensor(J), torch.tensor(r, dtype=torch.float64)

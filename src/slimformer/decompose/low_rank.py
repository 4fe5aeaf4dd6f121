"""Ranks of the values: a width that may be mixed before it is cut, because nothing non-linear stands before it.

A query head h gives its reader z_h = Σ_j P_ij v_j, linear in the values v of its key/value head g. So any invertible
map may be moved from the reader to the values, z_h ← Qᵀ z_h with one Q for all heads of g, and nothing changes. A Q
whose columns are ordered by worth turns "rank r" into "keep the first r coordinates of every head": a selection, with
the error at every size and the refit of the reader *across heads* as for neurons (`reduction`).

Because the reader is refitted, only the nested subspaces span(q_{r+1} … q_d) that are given up matter, so Q can be
orthogonal: lossless, well conditioned, and a ridge means the same before and after.

One head alone (or heads that do not correlate): the best subspace is that of the singular vectors of W_h L, where
C_h = L Lᵀ are the second moments of z_h, that is, of the values *after* attention (`whitened`).
Together: giving up the direction n in all heads of a group means V_h n = 0 there, and costs, with all of V refitted,

    f(n) = tr(A B⁻¹),    A_hh' = nᵀ V_hᵀ V_h' n,    B_hh' = nᵀ H_hh' n,    H = (C + λI)⁻¹,

backward elimination with a free direction in place of a coordinate (`eliminated`). For one head to a group this is a
Rayleigh quotient, and its least eigenvector is the best single step; for more, n goes downhill from a few starts.

Reference: Hassibi & Stork (1993) for the constrained step; Lin et al., MoDeGPT (arXiv 2408.09632) and Meng et al.,
CLOVER (arXiv 2411.17426) for value subspaces by SVD.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slimformer.decompose.bilinear import nearest_product
from slimformer.decompose.elimination import RIDGE
from slimformer.decompose.reduction import Curve, Width, curve, select
from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments

FLOOR = 4 * torch.finfo(torch.float64).eps ** 0.5  # times √d: what λ must be for digits to be left of (C + λI)⁻¹
STARTS = 2  # of the descent to a direction: from the best of each head alone, and of all
SWEEPS = 8
STEPS = (0.0, 0.15, 0.5, 1.0, 2.0)  # tried in each; 0 for a minimum
RTOL_STEP = 1e-9


@dataclass(frozen=True)
class Ranks:
    """z ≈ E (S z) + c, where (S z)_h = S_g z_h with the S of the key/value head g that h reads.

    W_v ← S W_v and b_v ← S b_v for every key/value head, W_o ← W_o E, b_o ← b_o + W_o c.
    """

    S: Float[Tensor, "kv r d"]
    E: Float[Tensor, "w k"]
    c: Float[Tensor, " w"]


def low_rank(width: Width, *, ridge: float) -> Curve:
    """The error left at every rank r = 0 … d of all value heads, directions chosen by elimination.

    Cost O(d K w²) for w = H d coordinates, once for all ranks.
    """
    return value_curve(width, eliminated(width, ridge=ridge), ridge=ridge)


def value_curve(width: Width, Q: Float[Tensor, "kv d d"], *, ridge: float) -> Curve:
    """The error left when the first r coordinates of every head stay, in the bases Q, after the refit of the reader."""
    turned = by_rank(width, Q)
    return curve(turned, "low_rank", range(turned.units), ridge=ridge)


def value_ranks(width: Width, Q: Float[Tensor, "kv d d"], r: int, *, ridge: float) -> Ranks:
    """The reduction to rank r in the bases Q. Cost O((r H)² w)."""
    turned = by_rank(width, Q)
    reduction = select(turned, range(turned.units), r, ridge=ridge)
    R = _turn(width, Q)
    columns = torch.arange(r * width.units).reshape(r, width.units).mT.flatten()  # (i, h) to (h, i)
    return Ranks(Q.mT[:, :r].contiguous(), (R @ reduction.E)[:, columns], R @ reduction.c)


def by_rank(width: Width, Q: Float[Tensor, "kv d d"]) -> Width:
    """The width in the bases Q, ordered so that a unit is one rank: coordinate i of every head, i = 0 … d − 1."""
    each = Q.double().repeat_interleave(width.group, dim=0)

    def turned(A: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:  # A R, head by head
        return (A.unflatten(1, each.shape[:2]).transpose(0, 1) @ each).permute(1, 2, 0).flatten(1)

    fit, held = (Moments(m.count, turned(m.sum[None])[0], turned(turned(m.gram).mT)) for m in (width.fit, width.held))
    return Width(width.name, turned(width.W.double()), fit, held, unit=width.units, bias=width.bias)


def on_values(moments: Moments, S: Float[Tensor, "kv r d"], *, group: int) -> Moments:
    """Moments of S z, head by head, from those of z."""
    T = torch.block_diag(*S.repeat_interleave(group, dim=0))
    return Moments(moments.count, T @ moments.sum, T @ moments.gram @ T.mT)


def whitened(width: Width, *, ridge: float) -> Float[Tensor, "kv d d"]:
    """Bases of the value heads by SVD of W L in the metric of z: for each of them the singular vectors, best first.

    Exact for one query head to a value head when heads do not correlate. For a group Σ_h (W_hᵀW_h) ⊗ C_h, in which an
    error Δ of the values counts, is replaced by the nearest single product: exact when the heads of a group see values
    with proportional moments. Cost O(K d³).
    """
    C, W = damped(width.fit.second(centred=width.bias), ridge), width.W.double()
    Q = []
    for heads in _groups(width):
        M, C_g = nearest_product(
            torch.stack([W[:, h].mT @ W[:, h] for h in heads]), torch.stack([C[h][:, h] for h in heads])
        )
        L = torch.linalg.cholesky(C_g)
        B = torch.linalg.eigh(L.mT @ M @ L).eigenvectors.flip(-1)
        Q.append(_same_flag(L @ B))
    return torch.stack(Q)


def eliminated(width: Width, *, ridge: float) -> Float[Tensor, "kv d d"]:
    """Bases of the value heads, last column given up first: backward elimination of directions, group by group.

    Every step takes the refit of all heads into account. Cost O(d K w²).
    """
    h, d, g = width.units, width.unit, width.group
    C = damped(width.fit.second(centred=width.bias), max(min(ridge, RIDGE), FLOOR * (h * d) ** 0.5))
    H = torch.cholesky_inverse(torch.linalg.cholesky(C))
    M = width.W.double().mT @ width.W.double()
    Q = torch.eye(d, dtype=H.dtype).repeat(h // g, 1, 1)
    for m in range(d, 0, -1):
        for k in range(h // g):
            rows = torch.arange(k * g * m, (k + 1) * g * m)
            R = _reflection(_cheapest(_blocks(M, rows, g), _blocks(H, rows, g)))
            Q[k, :, :m] = Q[k, :, :m] @ R
            for A in (H, M):
                _rotate(A, rows, R)
            H, M = _dropped(H, M, rows[m - 1 :: m])
        alive = torch.arange(h * m).reshape(h, m)[:, : m - 1].flatten()
        H, M = H[alive][:, alive], M[alive][:, alive]
    return Q


def _cheapest(M: Float[Tensor, "g m g m"], H: Float[Tensor, "g m g m"]) -> Float[Tensor, " m"]:
    """A unit vector n of least f(n) = tr(A B⁻¹), A_ab = nᵀ M_ab n, B_ab = nᵀ H_ab n; see the head of the file.

    ∇f = 2 (P − Q) n with P = Σ (B⁻¹)_ab M_ab, Q = Σ (B⁻¹ A B⁻¹)_ab H_ab. Steps n ← n − τ P⁻¹ (P − Q) n go down from
    several starts, τ being the best of a few: what is found is a minimum, and near the least.
    """
    if len(M) == 1:
        return _least_eigenvectors(M[0, :, 0], H[0, :, 0], 1)[0]
    alone = [_least_eigenvectors(M[a, :, a], H[a, :, a], STARTS) for a in range(len(M))]
    n = torch.cat([*alone, _least_eigenvectors(torch.einsum("aiaj->ij", M), torch.einsum("aiaj->ij", H), STARTS)])
    τ = torch.tensor(STEPS, dtype=n.dtype)[:, None, None]
    for _ in range(SWEEPS):
        _, A, Binv = _costs(M, H, n)
        P, Q = torch.einsum("zab,aibj->zij", Binv, M), torch.einsum("zab,aibj->zij", Binv @ A @ Binv, H)
        λ = RTOL_STEP * P.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        step = torch.linalg.solve(P + λ * torch.eye(n.shape[1], dtype=n.dtype), ((Q - P) @ n[:, :, None]))[:, :, 0]
        tried = n + τ * step
        tried = tried / tried.norm(dim=2, keepdim=True)
        cost = _costs(M, H, tried.flatten(0, 1))[0].reshape(len(STEPS), -1)
        n = tried[cost.argmin(0), torch.arange(len(n))]
    return n[_costs(M, H, n)[0].argmin()]


def _costs(M: Float[Tensor, "g m g m"], H: Float[Tensor, "g m g m"], n: Float[Tensor, "z m"]) -> tuple[Tensor, ...]:
    """f, A and B⁻¹ at each of the vectors n."""
    A, B = (torch.einsum("aibj,zi,zj->zab", X, n, n) for X in (M, H))
    Binv = torch.linalg.inv(B)
    return (A * Binv).sum((1, 2)), A, Binv


def _least_eigenvectors(P: Float[Tensor, "m m"], Q: Float[Tensor, "m m"], count: int) -> Float[Tensor, "z m"]:
    """Unit vectors n of least nᵀPn / nᵀQn, as rows, the least first."""
    L = torch.linalg.cholesky(damped((Q + Q.mT) / 2, 0.0))
    half = torch.linalg.solve_triangular(L, (P + P.mT) / 2, upper=False)
    S = torch.linalg.solve_triangular(L, half.mT, upper=False)
    y = torch.linalg.eigh((S + S.mT) / 2).eigenvectors[:, :count]
    n = torch.linalg.solve_triangular(L.mT, y, upper=True).mT
    return n / n.norm(dim=1, keepdim=True)


def _reflection(n: Float[Tensor, " m"]) -> Float[Tensor, "m m"]:
    """A symmetric orthogonal matrix whose last column is n or −n."""
    v = n.clone()
    v[-1] += torch.copysign(torch.ones((), dtype=n.dtype), n[-1])
    return torch.eye(len(n), dtype=n.dtype) - 2 * torch.outer(v, v) / (v @ v)


def _rotate(A: Float[Tensor, "a a"], rows: Int[Tensor, " b"], R: Float[Tensor, "m m"]) -> None:
    """A ← TᵀAT in place, where T is R on every head among `rows`."""
    m, a = len(R), len(A)
    A[rows] = torch.einsum("hmx,mp->hpx", A[rows].reshape(-1, m, a), R).reshape(-1, a)
    A[:, rows] = (A[:, rows].reshape(a, -1, m) @ R).reshape(a, -1)


def _dropped(
    H: Float[Tensor, "a a"], M: Float[Tensor, "a a"], J: Int[Tensor, " g"]
) -> tuple[Float[Tensor, "a a"], Float[Tensor, "a a"]]:
    """H and M = VᵀV after the coordinates J are dropped and V is refitted; their rows and columns there are zero."""
    T = torch.linalg.solve(H[J][:, J], H[J])
    X = M[:, J] @ T
    return H - H[:, J] @ T, M - X - X.mT + T.mT @ M[J][:, J] @ T


def _blocks(A: Float[Tensor, "a a"], rows: Int[Tensor, " b"], g: int) -> Float[Tensor, "g m g m"]:
    m = len(rows) // g
    return A[rows][:, rows].reshape(g, m, g, m)


def _groups(width: Width) -> list[list[slice]]:
    """For each key/value head the coordinates of the query heads that read it."""
    d, g = width.unit, width.group
    heads = [slice(h * d, (h + 1) * d) for h in range(width.units)]
    return [heads[k : k + g] for k in range(0, len(heads), g)]


def _same_flag(B: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """An orthogonal matrix whose last k columns span what those of B span, for every k."""
    return torch.linalg.qr(B.flip(-1)).Q.flip(-1)


def _turn(width: Width, Q: Float[Tensor, "kv d d"]) -> Float[Tensor, "w w"]:
    """Q on every head, columns in the order (i, h): first coordinate 0 of all heads, then coordinate 1, …"""
    h, d = width.units, width.unit
    R = torch.block_diag(*Q.double().repeat_interleave(width.group, dim=0))
    return R.reshape(h * d, h, d).mT.reshape(h * d, h * d)

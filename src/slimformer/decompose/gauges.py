"""Rewrites of attention that change no output: free parameters of the formula are used up.

Values. Rows of P sum to one, so b_v reaches the output as W_o b_v, whatever the scores are: it moves into b_o.
Keys. Without rotary positions what is added to all keys adds one number to all scores of a query, and softmax does not
see it: b_k may be anything, in particular zero, or −W_k μ, which centres the keys.
Pairs. W_k (or W_v) of a head is d × D of rank d. Pivoted QR picks d columns J that are a good basis, B = W[:, J], and

    W = B T,    T[:, J] = I:      k ← T x = x_J + T_rest x_rest,   q ← Bᵀ q,      v ← T x,   W_o ← W_o B.

T has d (D − d) numbers that are not 0 or 1, so every key head saves d² parameters and d² multiplications per token, and
every value head as many: K d² for each pair, D²/H with H = K heads of D/H. They are only saved by a module that gathers
x_J and multiplies the rest. A key head whose weights have rank r < d needs no more than r rows.

Ranks. The form Rᵀ W that a pair of factors makes may have a rank below that of either. `shortest` writes W = B T, gives
B to R, writes the new R = B' T' and gives B' back: both factors then have as many rows as the form has rank.

With one head and d = D all columns are picked, T is a permutation of I and keys are x itself: the pair has become one
matrix (`collapsed`).

Not for keys under rotary positions (B does not commute with the rotation) nor after a norm of q and k; values and their
output are free of both. Under grouped queries B goes into the q, or W_o, of every head of the group.

Cost O(D d²) per head. Reference: Cheng, Gimbutas, Martinsson, Rokhlin, On the compression of low rank matrices (2005).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from scipy.linalg import qr
from torch import Tensor

RTOL_RANK = 1e-12  # pivots below this share of the first are rounding noise


@dataclass(frozen=True)
class Interpolation:
    """W = B T for every key/value head, where T has columns J of the identity."""

    B: Float[Tensor, "kv d r"]
    T: Float[Tensor, "kv r D"]
    J: Int[Tensor, "kv r"]

    @property
    def saved(self) -> int:
        """Parameters, and multiplications per token, that the identity inside T and rows not needed save."""
        kv, d, r = self.B.shape
        return kv * (d * self.T.shape[2] - r * (self.T.shape[2] - r))


def interpolated(W: Float[Tensor, "kd D"], *, heads: int, rtol: float = RTOL_RANK) -> Interpolation:
    """W_k or W_v of all key/value heads as B T, with as many rows r in T as the head of the highest rank needs."""
    parts = [_pivoted(w, rtol) for w in W.double().reshape(heads, len(W) // heads, -1)]
    r = max(rank for *_, rank in parts)
    B, T, J = zip(*(_columns(w, R, P, rank, r) for w, R, P, rank in parts), strict=True)
    return Interpolation(torch.stack(B), torch.stack(T), torch.stack(J))


def reads_interpolated(W_o: Float[Tensor, "m hd"], B: Float[Tensor, "kv d r"]) -> Float[Tensor, "m hr"]:
    """W_o ← W_o B, head by head. (Queries: `on_heads` with Bᵀ, once for each query head.)"""
    kv, d, _ = B.shape
    blocks = W_o.double().reshape(len(W_o), kv, -1, d)
    return (blocks @ B).reshape(len(W_o), -1)


def shortest(
    R: Float[Tensor, "h d p"], W: Float[Tensor, "kv d q"], *, rtol: float = RTOL_RANK
) -> tuple[Float[Tensor, "h r p"], Float[Tensor, "kv r q"]]:
    """The same forms R_hᵀ W_g with the fewest rows r: the highest rank among the key/value heads.

    Queries and keys: R = [W_q b_q], W = [W_k b_k]. Output and values: R = W_oᵀ by heads, W = [W_v b_v]. The query heads
    of a group stand side by side. First R is made orthonormal, R = Lᵀ Qᵀ, and L goes to W: pivots of L W are those of
    the forms themselves, however the two factors share the size of a row. Cost O(d² (p + q)) per head.
    """
    kv, group = len(W), len(R) // max(1, len(W))
    Q, L = torch.linalg.qr(R.double().reshape(kv, group, *R.shape[1:]).transpose(2, 3).flatten(1, 2))
    R = Q.reshape(kv, group, R.shape[2], -1).transpose(2, 3).flatten(0, 1)
    W = L @ W.double()
    first = interpolated(W.flatten(0, 1), heads=kv, rtol=rtol)
    r = first.T.shape[1]
    if not r:
        return R[:, :0].double(), W[:, :0].double()
    side = first.B.mT[:, None] @ R.double().reshape(kv, group, *R.shape[1:])  # kv × group × r × p
    second = interpolated(side.transpose(1, 2).reshape(kv * r, -1), heads=kv, rtol=rtol)
    T = second.T.reshape(kv, -1, group, R.shape[2]).transpose(1, 2)
    return T.reshape(len(R), -1, R.shape[2]), second.B.mT @ first.T


def silent_heads(
    R: Float[Tensor, "h d p"], W: Float[Tensor, "kv d q"], *, rtol: float = RTOL_RANK
) -> Bool[Tensor, " h"]:
    """Heads whose form R_hᵀ W_g is zero up to rounding: with the output and the values, heads that write nothing."""
    each = W.double().repeat_interleave(len(R) // max(1, len(W)), 0)
    form = (R.double().mT @ each).flatten(1).norm(dim=1)
    return form <= rtol * R.double().flatten(1).norm(dim=1) * each.flatten(1).norm(dim=1)


def folded_bias(
    W_o: Float[Tensor, "m hd"], b_o: Float[Tensor, " m"] | None, b_v: Float[Tensor, " kd"], *, heads: int
) -> Float[Tensor, " m"]:
    """The output bias that makes b_v superfluous: b_o + Σ_h W_oh b_vg. Where there was none, there is one now."""
    d = W_o.shape[1] // heads
    each = b_v.double().reshape(-1, d).repeat_interleave(heads * d // len(b_v), dim=0)
    return (0 if b_o is None else b_o.double()) + W_o.double() @ each.flatten()


def collapsed(
    W_q: Float[Tensor, "d D"], b_q: Float[Tensor, " d"] | None, W_k: Float[Tensor, "d D"]
) -> tuple[Float[Tensor, "D D"], Float[Tensor, " D"]]:
    """One matrix for a pair: s_ij = x_iᵀ W x_j + wᵀ x_j, with W = W_qᵀ W_k and w = W_kᵀ b_q.

    D² parameters in place of 2 d D: fewer only when d > D/2, that is, for a single head.
    """
    W = W_k.double()
    return W_q.double().mT @ W, W.mT @ b_q.double() if b_q is not None else W.new_zeros(W.shape[1])


def _pivoted(
    W: Float[Tensor, "d D"], rtol: float
) -> tuple[Float[Tensor, "d D"], Float[Tensor, "n D"], Int[Tensor, " D"], int]:
    """W, R and P of W[:, P] = Q R, and the numerical rank."""
    R, P = qr(W.cpu().numpy(), mode="r", pivoting=True)
    size = abs(R.diagonal())
    rank = int((size > rtol * size[0]).sum())
    return W, torch.from_numpy(R), torch.from_numpy(P).long(), rank


def _columns(
    W: Float[Tensor, "d D"], R: Float[Tensor, "n D"], P: Int[Tensor, " D"], rank: int, r: int
) -> tuple[Float[Tensor, "d r"], Float[Tensor, "r D"], Int[Tensor, " r"]]:
    """B, T, J of one head. Columns picked beyond its rank are combinations of others and help to express none."""
    J = P[:r]
    T = W.new_zeros(r, W.shape[1])
    T[:rank, P[rank:]] = torch.linalg.solve_triangular(R[:rank, :rank], R[:rank, rank:], upper=True)
    T[:, J] = torch.eye(r, dtype=T.dtype)
    return W[:, J], T, J

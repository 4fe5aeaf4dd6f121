"""How the output of attention answers to its scores, to first order: what an error in a score costs.

A head writes y_i = W Σ_j P_ij v_j = W z_i with P = softmax(s). When scores move by δs the weights move by
δP_ij = P_ij (δs_ij − Σ_l P_il δs_il), so

    δy_i = Σ_j δs_ij P_ij W (v_j − z_i).

Scores that nobody attends to, keys whose values say what z_i says anyway, and anything common to all keys of a query
cost nothing; an error of the scores themselves counts them all. For an error δs_ij = q_iᵀ Δ k_j of the bilinear form

    δy_i = (q_iᵀ Δ B_i)ᵀ,     B_i = Σ_j P_ij k_j (v_j − z_i)ᵀ Wᵀ.

Three second moments are kept for every head, of a sample of queries i:

    queries, keys   E q_i q_iᵀ and E B_i B_iᵀ, for `bilinear`: E ‖δy‖² = tr(Δᵀ C_q Δ C_k) if q and B are independent
    planes          E t_i t_iᵀ, for `rotary`, where row f of t_i (d × m) is what plane f contributes to δy_i when it is
                    scaled, Re q̄_f B_f, and row f + d/2 when it is turned, Im q̄_f B_f; no independence is assumed

These are errors of what the block writes, the unit in which all other sites are measured.

First order counts a key by the attention it gets now. Where nearly all attention rests on one position, all other keys
would count for nothing, and large errors of their scores would be free, until one of them draws attention to itself. So
the response is taken at evener weights, (1 − ρ) P_ij + ρ / t for the t keys a query sees (`evened`).

Cost t d² for a query that sees t keys: a few hundred queries for each of a few sequences are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from slimformer.decompose.bilinear import Scores
from slimformer.linalg.precision import to_double

EVEN = 0.5  # ρ


@dataclass(frozen=True)
class Response:
    """Sums over `count` queries, for every query head; a monoid, as `Moments`."""

    count: int
    queries: Float[Tensor, "h d d"]
    keys: Float[Tensor, "h d d"]
    planes: Float[Tensor, "h d d"]

    def __add__(self, other: Response) -> Response:
        return Response(
            self.count + other.count,
            self.queries + other.queries,
            self.keys + other.keys,
            self.planes + other.planes,
        )

    @property
    def scores(self) -> Scores:
        """Means: what `bilinear` needs."""
        n = max(self.count, 1)
        return Scores(self.queries / n, self.keys / n)

    @property
    def effects(self) -> Float[Tensor, "h d d"]:
        """Mean of t tᵀ: what `rotary` needs."""
        return self.planes / max(self.count, 1)


def evened(P: Float[Tensor, "h s t"], seen: Bool[Tensor, "h s t"], share: float = EVEN) -> Float[Tensor, "h s t"]:
    """(1 − ρ) P + ρ / t over the t keys each query sees; share = 0 leaves P as it is."""
    return (1 - share) * P + share * seen / seen.sum(-1, keepdim=True)


def response(
    q: Float[Tensor, "h s d"],
    k: Float[Tensor, "kv t d"],
    v: Float[Tensor, "kv t e"],
    P: Float[Tensor, "h s t"],
    W_o: Float[Tensor, "m he"],
) -> Response:
    """The response at s queries of one sequence, all heads at once; memory h s t d.

    q (times the scale of the scores) and k are what the head multiplies: after norms and rotation. P are the rows of
    these queries: zero where a mask is.
    """
    h, s, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    W = W_o.to(wide).unflatten(1, (h, -1)).transpose(0, 1)
    W = torch.linalg.qr(W, mode="r").R if W.shape[1] > W.shape[2] else W  # as long as W v, in fewer coordinates
    k, v = (x.to(wide).repeat_interleave(h // len(x), 0) for x in (k, v))
    B = _answers(k, v @ W.mT, P.to(wide))
    return Response(s, *(to_double(sums) for sums in _second_moments(q.to(wide), B)))


def _answers(
    k: Float[Tensor, "h t d"], y: Float[Tensor, "h t e"], P: Float[Tensor, "h s t"]
) -> Float[Tensor, "h s d e"]:
    """B_i = Σ_j P_ij k_j (y_j − Σ_l P_il y_l)ᵀ."""
    mean = (P @ k)[:, :, :, None] * (P @ y)[:, :, None, :]
    weighed = P[:, :, None, :] * k.mT.contiguous()[:, None]  # h × s × d × t: one product for all queries of a head
    return (weighed.flatten(1, 2) @ y).unflatten(1, mean.shape[1:3]) - mean


def _second_moments(q: Float[Tensor, "h s d"], B: Float[Tensor, "h s d e"]) -> tuple[Tensor, Tensor, Tensor]:
    """Σ q qᵀ, Σ B Bᵀ and Σ t tᵀ."""
    n = q.shape[2] // 2
    re, im = q[:, :, :n, None], q[:, :, n : 2 * n, None]
    top, low = B[:, :, :n], B[:, :, n : 2 * n]
    t = torch.cat([re * top + im * low, re * low - im * top, 0 * B[:, :, 2 * n :]], dim=2)  # an odd d has no planes
    rows, turns = (x.mT.flatten(1, 2) for x in (B, t))
    return q.mT @ q, rows.mT @ rows, turns.mT @ turns

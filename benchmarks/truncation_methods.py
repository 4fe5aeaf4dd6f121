"""Ways to cut attention by rank, each as a reduction that `rewrite.ranks.reduce_ranks` carries out.

Queries and keys, r coordinates a head (whole planes with rotary positions):

    plain       SVD of W_qᵀ W_k: merge, decompose, truncate. Rotary: planes by the norms of their weights
    column-row  MoDeGPT: coordinates, or planes, by ‖q column‖ · ‖k column‖ over the data
    turned      rotary only: planes as `column-row` takes them, those kept rescaled and turned by least squares
    scores      SVD of the form in the metric of queries and centred keys. Rotary: planes eliminated by the moments of x
    grouped     rotary only: as `scores`, after mixing planes whose frequencies nearly agree (commutator error ≤ 0.1)
    response    the same in the metric of what scores do to the output: what plans use

Values and output, r coordinates a head:

    plain         SVD of W_o W_v: merge, decompose, truncate
    before        MoDeGPT: the same in the metric of the values before attention
    before+refit  the same bases, W_o refitted across heads after attention
    after alone   bases in the metric after attention, every head refitted on its own values alone
    after         bases in the metric after attention, W_o refitted across heads: what plans use
    eliminated    as `after`, bases by elimination of directions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedModel

from score_moments import energy_orders, frequency_groups, mixed, rotary_moments, score_moments
from simulated_modegpt import column_energy, columns_to_keep, head_rows, whitened_svd
from slimformer.decompose import Width
from slimformer.decompose.bilinear import ScoreRanks, Scores, on_heads, score_gauge, score_ranks
from slimformer.decompose.low_rank import Ranks, eliminated, value_ranks, whitened
from slimformer.decompose.response import Response
from slimformer.decompose.rotary import plane_ranks, planes
from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture, Site
from slimformer.models.architecture import weight_of
from slimformer.models.ranks import heads_of

RIDGE = 1e-3
COMMUTATOR = 0.1  # turn, in radians, that two planes of a group may differ by at the end of the window


@dataclass(frozen=True, eq=False)
class Seen:
    """The attention of one block and what it saw: x that projections read, z that the output projection reads."""

    model: PreTrainedModel
    architecture: Architecture
    block: int
    x: Moments
    z: Moments
    response: Response
    length: int

    @cached_property
    def heads(self) -> Site:
        return heads_of(self.architecture, self.block)

    @property
    def rotary(self) -> bool:
        return self.heads.attention.rotary

    @property
    def kv(self) -> int:
        return self.heads.units // self.heads.group

    @cached_property
    def weights(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weights (heads × d × D) and biases of queries, keys and values, in double precision."""
        parts = [head_rows(self.model, writer) for writer in self.heads.writers]
        return [(W.double(), None if b is None else b.double()) for W, b in parts]

    @cached_property
    def flat(self) -> list[tuple[Tensor, Tensor | None]]:
        return [(W.flatten(0, 1), None if b is None else b.flatten()) for W, b in self.weights]

    @cached_property
    def width(self) -> Width:
        site = self.heads
        W_o = weight_of(self.model.get_submodule(site.reader)).double()
        return Width(site.name, W_o, self.z, self.z, site.unit, site.group, site.reader_bias)

    @cached_property
    def frequencies(self) -> Tensor:
        return self.model.base_model.get_submodule("rotary_emb").inv_freq

    @cached_property
    def rotary_effects(self) -> Tensor:
        """Second moments of what planes add to scores, from those of x."""
        queries, keys, _ = self.flat
        return rotary_moments(self.x, queries, keys, self.frequencies, length=self.length)

    @cached_property
    def scores(self) -> Scores:
        (W_q, b_q), (W_k, _), _ = self.flat
        return score_moments(self.x, W_q, b_q, W_k, heads=self.heads.units)

    @cached_property
    def mixing(self) -> tuple[ScoreRanks, Tensor, tuple[int, ...]]:
        """Planes mixed inside groups of near frequencies, what the mixed ones add to scores, and their order."""
        groups = frequency_groups(self.frequencies, length=self.length, tolerance=COMMUTATOR)
        mix, _ = mixed(self.scores, self.frequencies, groups, kv=self.kv, ridge=RIDGE)
        queries, keys = (_mapped(S, *part) for S, part in zip((mix.N, mix.M), self.flat[:2], strict=True))
        A = rotary_moments(self.x, queries, keys, self.frequencies, length=self.length)
        return mix, A, planes(A, A, kv=self.kv, ridge=RIDGE, shared=False).order

    @cached_property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """Planes of every key head, best first, by `scores` and by `response`."""
        found = {"scores": self.rotary_effects, "response": self.response.effects}
        orders = {name: planes(A, A, kv=self.kv, ridge=RIDGE, shared=False).order for name, A in found.items()}
        each = energy_orders(self.scores, kv=self.kv)
        n = self.heads.unit // 2
        units = zip(*([g * n + f for f in order] for g, order in enumerate(each)), strict=True)
        return {**orders, "energy": tuple(chain.from_iterable(units))}

    @cached_property
    def whitened_bases(self) -> Tensor:
        return whitened(self.width, ridge=RIDGE)

    @cached_property
    def bases_before(self) -> Tensor:
        """As `whitened_bases`, in the metric of the values before attention."""
        C = torch.block_diag(*_before(self).repeat_interleave(self.heads.group, 0))
        return whitened(replace(self.width, fit=Moments(1, C.new_zeros(len(C)), C), bias=False), ridge=0.0)

    @cached_property
    def eliminated_bases(self) -> Tensor:
        return eliminated(self.width, ridge=RIDGE)


def plain_scores(seen: Seen, r: int) -> ScoreRanks:
    """SVD of W_qᵀ W_k, which is that of the scores of white x; with rotary positions planes by norms."""
    (W_q, _), (W_k, _), _ = seen.weights
    if seen.rotary:
        return _columns(W_q.square().sum(-1), W_k.square().sum(-1), r, seen)
    scores = Scores(W_q @ W_q.mT, (W_k @ W_k.mT).repeat_interleave(seen.heads.group, 0))
    return score_ranks(score_gauge(scores, group=seen.heads.group, ridge=0.0), r, group=seen.heads.group)


def column_row(seen: Seen, r: int) -> ScoreRanks:
    """MoDeGPT's module II."""
    queries, keys, _ = seen.weights
    return _columns(column_energy(*queries, seen.x), column_energy(*keys, seen.x), r, seen)


def _columns(energy_q: Tensor, energy_k: Tensor, r: int, seen: Seen) -> ScoreRanks:
    together = energy_q.unflatten(0, (-1, seen.heads.group)).sum(1)  # of all queries of a group
    kept = columns_to_keep(together, energy_k, r, 2 if seen.rotary else 1)
    rows = torch.stack([each.nonzero().flatten() for each in kept])
    M = torch.eye(seen.heads.unit, dtype=torch.float64)[rows]
    return ScoreRanks(M.repeat_interleave(seen.heads.group, 0), M, rows[:, : r // 2] if seen.rotary else None)


def turned_columns(seen: Seen, r: int) -> ScoreRanks:
    """Planes by energy, refitted: what of a difference to `response` is the order, and what the refit."""
    return _planes(seen, "energy", seen.response.effects, r)


def by_scores(seen: Seen, r: int) -> ScoreRanks:
    """Least error of the scores."""
    if seen.rotary:
        return _planes(seen, "scores", seen.rotary_effects, r)
    return _gauge(seen, seen.scores, r)


def grouped(seen: Seen, r: int) -> ScoreRanks:
    """As `by_scores`, of planes mixed inside groups of near frequencies; every one turns as the one in its place."""
    mix, A, order = seen.mixing
    kept = plane_ranks(A, order, r // 2 * seen.kv, kv=seen.kv, ridge=RIDGE)
    return ScoreRanks(kept.N @ mix.N, kept.M @ mix.M, kept.planes)


def _mapped(S: Tensor, W: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return on_heads(S, W), None if b is None else on_heads(S, b)


def by_response(seen: Seen, r: int) -> ScoreRanks:
    """Least error of what the block writes, to first order."""
    if seen.rotary:
        return _planes(seen, "response", seen.response.effects, r)
    return _gauge(seen, seen.response.scores, r)


def _planes(seen: Seen, name: str, effects: Tensor, r: int) -> ScoreRanks:
    return plane_ranks(effects, seen.orders[name], r // 2 * seen.kv, kv=seen.kv, ridge=RIDGE)


def _gauge(seen: Seen, scores: Scores, r: int) -> ScoreRanks:
    return score_ranks(score_gauge(scores, group=seen.heads.group, ridge=RIDGE), r, group=seen.heads.group)


def plain_values(seen: Seen, r: int) -> Ranks:
    """SVD of W_o W_v, which is that of white x."""
    W, _ = seen.weights[2]
    return _svd(seen, W @ W.mT, r)


def before_attention(seen: Seen, r: int) -> Ranks:
    """MoDeGPT's module III."""
    return _svd(seen, _before(seen), r)


def _before(seen: Seen) -> Tensor:
    """Second moments of the values of every value head, before attention."""
    W, _ = seen.weights[2]
    C = W @ seen.x.second(centred=False) @ W.mT
    return torch.stack([damped(each, RIDGE) for each in C])


def before_refitted(seen: Seen, r: int) -> Ranks:
    """MoDeGPT's subspaces with our refit."""
    return value_ranks(seen.width, seen.bases_before, r, ridge=RIDGE)


def _svd(seen: Seen, C: Tensor, r: int) -> Ranks:
    """The best map of rank r for values with second moments C, head by head; their bias moves to the output."""
    b = seen.weights[2][1]
    readers = seen.width.W.unflatten(1, (seen.kv, seen.heads.group, seen.heads.unit))
    found = [whitened_svd(C[g], readers[:, g].flatten(0, 1), r) for g in range(seen.kv)]
    S, E = (torch.stack(part).double() for part in zip(*found, strict=True))
    mean = torch.zeros(seen.kv, seen.heads.unit, dtype=torch.float64) if b is None else b
    c = mean - (E @ (S @ mean[:, :, None]))[:, :, 0]
    repeat = seen.heads.group
    return Ranks(S, torch.block_diag(*E.repeat_interleave(repeat, 0)), c.repeat_interleave(repeat, 0).flatten())


def after_attention(seen: Seen, r: int) -> Ranks:
    """Bases by SVD in the metric of z."""
    return value_ranks(seen.width, seen.whitened_bases, r, ridge=RIDGE)


def after_alone(seen: Seen, r: int) -> Ranks:
    """The bases of `after_attention`, refitted head by head: E_h = C_h Sᵀ (S C_h Sᵀ)⁻¹."""
    width, S = seen.width, seen.whitened_bases.mT[:, :r].contiguous()
    C = damped(width.fit.second(centred=width.bias), RIDGE)
    μ = width.fit.mean if width.bias else torch.zeros(len(C), dtype=C.dtype)
    E, c = [], []
    for h, rows in enumerate(torch.arange(len(C)).split(width.unit)):
        S_h, C_h = S[h // width.group], C[rows][:, rows]
        E.append(torch.linalg.solve(S_h @ C_h @ S_h.mT, S_h @ C_h).mT)
        c.append(μ[rows] - E[-1] @ (S_h @ μ[rows]))
    return Ranks(S, torch.block_diag(*E), torch.cat(c))


def eliminated_directions(seen: Seen, r: int) -> Ranks:
    """Bases by elimination, all heads together."""
    return value_ranks(seen.width, seen.eliminated_bases, r, ridge=RIDGE)


SCORES: dict[str, Callable[[Seen, int], ScoreRanks]] = {
    "plain": plain_scores,
    "column-row": column_row,
    "turned": turned_columns,
    "scores": by_scores,
    "grouped": grouped,
    "response": by_response,
}
VALUES: dict[str, Callable[[Seen, int], Ranks]] = {
    "plain": plain_values,
    "before": before_attention,
    "before+refit": before_refitted,
    "after alone": after_alone,
    "after": after_attention,
    "eliminated": eliminated_directions,
}
ROTARY = {"turned", "grouped"}  # ways that make sense of planes alone
BOTH: dict[str, tuple[str, str]] = {
    "plain": ("plain", "plain"),
    "modegpt": ("column-row", "before"),
    "ours": ("response", "after"),
}

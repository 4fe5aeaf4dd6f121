"""Causal attention over a past that is kept as k groups of keys and a window, in time linear in the sequence.

Tokens come in blocks of B, a window is r blocks. A query of block i sees the keys of the blocks i−r+1 … i up to its own
exactly and all blocks before these through k groups (`sequence`). When block i begins, block i−r joins the groups: its
tokens are groups of one, and k + B groups become k again by weighted k-means. Nothing of a later block touches the
groups a query of block i sees, so no future leaks; and tokens one by one give what all at once give.

    memory     k + rB keys and values for each head, whatever the length; k more rows for S, and d² for C
    time       n (k + rB) 2d + n/B (k + B) k d · sweeps   multiplications for each head, in place of n² d

Two things matter more than the number of groups. The first few tokens draw attention that belongs to nobody (sinks:
Xiao et al., arXiv 2309.17453), so they stay groups of one. And keys are near when *queries* cannot tell them apart:
distances are |Lᵀ(k − k')|, L Lᵀ = C the mean of q qᵀ over the queries so far: the mean squared difference of scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from slimformer.decompose.sequence import SWEEPS, clusters, segments

SINKS = 4
DAMPING = 1e-3  # of C, relative to its mean diagonal: after few queries it is singular


@dataclass(frozen=True)
class Grouping:
    """How many groups there are and how they are made. Sequences up to k + window are exact."""

    k: int
    window: int = 256
    kind: str = "cluster"  # or "mean": neighbours in time, evenly
    sweeps: int = SWEEPS
    second_order: bool = False
    mass: bool = True
    metric: bool = True
    sinks: int = SINKS

    @property
    def block(self) -> int:
        """As long as can be when it must divide k and half the window: groups fill up without being merged."""
        return gcd(self.k, self.window // 2)


@dataclass(frozen=True)
class Groups:
    """Means of keys and values, the variance of the keys in a group coordinate by coordinate, and masses."""

    K: Float[Tensor, "b h k d"]
    V: Float[Tensor, "b h k p"]
    S: Float[Tensor, "b h k d"]
    mass: Float[Tensor, "b h k"]

    @classmethod
    def of_tokens(cls, K: Float[Tensor, "b h n d"], V: Float[Tensor, "b h n p"], real: Bool[Tensor, "b n"]) -> Groups:
        """Every token a group of one."""
        return cls(K, V, torch.zeros_like(K), real[:, None].to(K.dtype).expand(K.shape[:3]))

    def joined(self, other: Groups) -> Groups:
        """Both side by side."""
        return Groups(*(torch.cat(pair, 2) for pair in zip(self.parts(), other.parts(), strict=True)))

    def merged(self, assignment: Int[Tensor, "b h n"], k: int) -> Groups:
        """Groups of groups, with the moments all their members have together."""
        member = torch.nn.functional.one_hot(assignment, k).to(self.K.dtype) * self.mass[..., None]
        mass = member.sum(2)
        # one product in place of three scatters, which take longer on a CPU
        sums = member.mT @ torch.cat([self.K, self.V, self.S + self.K.square()], -1)
        means = sums / mass.clamp_min(torch.finfo(mass.dtype).tiny)[..., None]
        d, p = self.K.shape[-1], self.V.shape[-1]
        K, V, squares = means.split([d, p, d], -1)
        return Groups(K, V, (squares - K.square()).clamp_min(0), mass)

    def parts(self) -> tuple[Tensor, ...]:
        return self.K, self.V, self.S, self.mass


@dataclass(frozen=True)
class Memory:
    """What is known of the past: groups, the tokens of the window, and the sum of q qᵀ (C) over `seen` tokens."""

    groups: Groups | None
    K: Float[Tensor, "b h r d"]
    V: Float[Tensor, "b h r p"]
    real: Bool[Tensor, "b r"]
    C: Float[Tensor, "b h d d"]
    scale: float  # of the scores
    seen: int = 0

    @classmethod
    def empty(cls, K: Float[Tensor, "b h n d"], V: Float[Tensor, "b h n p"], scale: float) -> Memory:
        b, h, _, d = K.shape
        return cls(None, K[:, :, :0], V[:, :, :0], K.new_ones(b, 0).bool(), K.new_zeros(b, h, d, d), scale)

    def each(self, change: Callable[[Tensor], Tensor]) -> Memory:
        """The same for other sequences of the batch: every part has the batch as its first side."""
        groups = None if self.groups is None else Groups(*(change(part) for part in self.groups.parts()))
        K, V, real, C = (change(part) for part in (self.K, self.V, self.real, self.C))
        return replace(self, groups=groups, K=K, V=V, real=real, C=C)

    def parts(self) -> list[Tensor]:
        """Everything that is kept."""
        groups = () if self.groups is None else self.groups.parts()
        return [*groups, self.K, self.V, self.real, self.C]

    @property
    def slots(self) -> int:
        """Keys that are kept for a head."""
        return self.K.shape[2] + (0 if self.groups is None else self.groups.K.shape[2])


def stream_attention(
    Q: Float[Tensor, "b hq m d"],
    K: Float[Tensor, "b h m d"],
    V: Float[Tensor, "b h m p"],
    real: Bool[Tensor, "b m"],
    memory: Memory,
    how: Grouping,
) -> tuple[Float[Tensor, "b hq m p"], Memory]:
    """Attention of m tokens that follow what `memory` has, and the memory after them. Query heads may share keys."""
    outputs, start, m = [], 0, K.shape[2]
    while start < m:
        if memory.seen % how.block == 0 and memory.K.shape[2] >= how.window:
            memory = _retired(memory, how)
        stop = min(m, start + how.block - memory.seen % how.block)
        q, k, v = (x[:, :, start:stop] for x in (Q, K, V))
        folded = _folded(q, K.shape[1])
        memory = replace(
            memory,
            K=torch.cat([memory.K, k], 2), V=torch.cat([memory.V, v], 2),
            real=torch.cat([memory.real, real[:, start:stop]], 1), seen=memory.seen + stop - start,
        )  # fmt: skip
        outputs.append(_attend(folded, memory, stop - start, how).reshape(*q.shape[:3], v.shape[-1]))
        new = real[:, start:stop]
        counted = folded if bool(new.all()) else folded * _rows(new, folded).to(q.dtype)
        memory = replace(memory, C=memory.C + counted.mT @ counted)
        start = stop
    return torch.cat(outputs, 2), memory


def _folded(q: Float[Tensor, "b hq m d"], h: int) -> Float[Tensor, "b h gm d"]:
    """Queries that share a key under each other, so that no key is copied."""
    b, hq, m, d = q.shape
    return q.reshape(b, h, hq // h * m, d)


def _rows(real: Bool[Tensor, "b m"], folded: Float[Tensor, "b h gm d"]) -> Bool[Tensor, "b 1 gm 1"]:
    return real.repeat(1, folded.shape[2] // real.shape[1])[:, None, :, None]


def _attend(q: Float[Tensor, "b h gm d"], memory: Memory, m: int, how: Grouping) -> Float[Tensor, "b h gm p"]:
    """Softmax over groups and window together, in one fused call: what is not q·k goes in as a bias of the scores.

    What may not be seen gets a bias so low that it counts for nothing, not −∞: a pad that sees no real token must stay
    a number.
    """
    never, r, past = torch.finfo(q.dtype).min / 4, memory.K.shape[2], memory.groups
    hidden = torch.ones(m, r, dtype=torch.bool, device=q.device).triu(r - m + 1).repeat(q.shape[2] // m, 1)
    if not bool(memory.real.all()):
        hidden = hidden | ~memory.real[:, None, None, :]
    bias = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill(hidden, never)
    bias, K, V = bias.expand(*q.shape[:3], r), memory.K, memory.V
    if past is not None:
        far = _group_bias(q, past, how, memory.scale).expand(*q.shape[:3], -1)
        bias, K, V = torch.cat([far, bias], -1), torch.cat([past.K, K], 2), torch.cat([past.V, V], 2)
    return torch.nn.functional.scaled_dot_product_attention(q, K, V, bias, scale=memory.scale)


def _group_bias(q: Float[Tensor, "b h m d"], groups: Groups, how: Grouping, scale: float) -> Float[Tensor, "b h #m k"]:
    """log n_c + ½ s² qᵀ S_c q; −∞, all but, where a group is empty."""
    mass = groups.mass if how.mass else (groups.mass > 0).to(q.dtype)
    bias = mass.log().clamp_min(torch.finfo(q.dtype).min / 4)[..., None, :]
    return bias + ((q * scale).square() / 2) @ groups.S.mT if how.second_order else bias


def _retired(memory: Memory, how: Grouping) -> Memory:
    """The oldest block of the window joins the groups."""
    B = how.block
    old = Groups.of_tokens(memory.K[:, :, :B], memory.V[:, :, :B], memory.real[:, :B])
    groups = old if memory.groups is None else memory.groups.joined(old)
    if groups.K.shape[2] > how.k:
        groups = condensed(groups, memory.C, how, scale=memory.scale)
    return replace(memory, groups=groups, K=memory.K[:, :, B:], V=memory.V[:, :, B:], real=memory.real[:, B:])


def condensed(groups: Groups, C: Float[Tensor, "b h d d"], how: Grouping, *, scale: float) -> Groups:
    """k groups in place of more; the first real ones stay as they are, in the first places."""
    real, sinks = groups.mass > 0, min(how.sinks, how.k - 1)
    rank = (real.long().cumsum(2) - 1).clamp_min(0)
    first = real & (rank < sinks)
    weight = groups.mass.masked_fill(first, 0)
    left = how.k - sinks
    if how.kind == "mean":
        b, h, n = weight.shape
        group_of = segments((weight > 0).reshape(b * h, n), left).reshape(b, h, n)
    else:
        group_of = clusters(in_metric(groups.K, C, scale) if how.metric else groups.K, weight, left, how.sweeps)
    return groups.merged(torch.where(first, rank, group_of + sinks), how.k)


def in_metric(K: Float[Tensor, "b h n d"], C: Float[Tensor, "b h d d"], scale: float) -> Float[Tensor, "b h n d"]:
    """Keys in coordinates where |k − k'|² is in proportion to the mean of (s q·(k − k'))²; C is a sum of q qᵀ."""
    C = C * (scale**2 / C.diagonal(dim1=2, dim2=3).mean(-1).clamp_min(torch.finfo(C.dtype).tiny))[..., None, None]
    C.diagonal(dim1=2, dim2=3).add_(DAMPING * scale**2)
    return K @ torch.linalg.cholesky(C)


def whole_attention(
    Q: Float[Tensor, "b h m d"],
    K: Float[Tensor, "b h n d"],
    V: Float[Tensor, "b h n p"],
    real: Bool[Tensor, "b n"],
    how: Grouping,
    *,
    scale: float,
) -> Float[Tensor, "b h m p"]:
    """Attention in both directions over k groups of all keys; the first real tokens stay groups of one, as above."""
    counted = Q * real[:, None, :, None].to(Q.dtype)
    groups = condensed(Groups.of_tokens(K, V, real), counted.mT @ counted, how, scale=scale)
    bias = _group_bias(Q, groups, how, scale)
    return torch.nn.functional.scaled_dot_product_attention(
        Q, groups.K, groups.V, bias.expand(*Q.shape[:3], -1), scale=scale
    )

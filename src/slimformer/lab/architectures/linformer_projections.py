"""From n keys and values to k rows of each: projections along the sequence (Wang et al., Linformer, arXiv 2006.04768).

    linear      E ∈ ℝ^{k×n}, trained                                 row j reads all tokens
    mean, max   segments of s = ⌈max_len / k⌉ tokens                 row j reads tokens j s … (j + 1) s − 1
    conv        the same segments weighted by one trained kernel of s numbers: kernel = stride = s
    cluster     k-means on the keys of every head (`decompose.sequence`), nothing trained
    svd         no rows: the best rank k of each P itself, the paper's eq. 6; `linformer_attention.py` computes it

With `row_stochastic` the trained numbers are logits w of weights: over the valid tokens i

    E_ji = exp(w_ji) / Z_j,     Z_j = Σ_i exp(w_ji),     and log Z_j is added to the scores of row j (its log-mass).

A row is then a mean of tokens that counts for as much as it holds; a token that is masked, or that a shorter sequence
does not have, is simply not in the sums. Without it E is used as it is and masked tokens enter as zeros: pads still
change nothing, but rows of short sequences shrink, and k rows share the attention whatever they hold. A segment without
any valid token is hidden in either case. Clusters always have their log-mass.

Shapes: x is b × h × n × d, a mask b × n, True for real tokens. Matrices: M = 1 for all heads, or one for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slimformer.decompose.sequence import clusters, pooled, spread
from slimformer.errors import ProjectionDoesNotFit

KINDS = ("linear", "mean", "max", "conv", "cluster", "svd", "exact")
WHOLE = ("svd", "exact")  # all tokens are keys: no projection
SHARING = ("none", "headwise", "key-value", "layerwise")
TRAINED = ("linear", "conv")
HIDDEN = -1e4  # added to a score, leaves exactly 0 of its weight; finite, so that a row of pads stays a number
FAR = -6.0  # first logit of tokens far from the middle of a row's segment: little weight, but a gradient


@dataclass(frozen=True)
class Compression:
    """How attention is compressed. `heads` are those that share this k; `block` is 0 unless the mode is causal."""

    kind: str
    k: int
    max_len: int
    heads: int
    sharing: str = "headwise"
    row_stochastic: bool = False
    second_order: bool = False
    sweeps: int = 3
    block: int = 0

    @property
    def stride(self) -> int:
        """Tokens in a segment."""
        return -(-self.max_len // self.k)

    @property
    def matrices(self) -> int:
        """Heads with a matrix of their own."""
        return self.heads if self.sharing == "none" else 1


@dataclass(frozen=True)
class Rows:
    """Compressed keys and values (… × h × k × d), what is added to their scores, and the variances of the keys."""

    keys: Tensor
    values: Tensor
    log_mass: Tensor | None = None
    spread: Tensor | None = None


@dataclass(frozen=True)
class Pool:
    """Rows of one tensor, the sum of each row of E (what a constant becomes), and what is added to the scores."""

    rows: Tensor
    total: Tensor
    log_mass: Tensor | None = None


class LinearProjection(nn.Module):
    """Trained matrices over all positions, cut to the length of the input. n k d multiplications for a head."""

    linear = True  # in x: projecting the stream and then making keys of it is the same

    def __init__(self, how: Compression) -> None:
        super().__init__()
        self.how = how
        shape = (how.matrices, how.k, how.max_len)
        self.key_weight = nn.Parameter(torch.empty(shape))
        self.value_weight = nn.Parameter(torch.empty(shape)) if how.sharing in ("none", "headwise") else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Uniform as in the authors' code; row-stochastic ones start as overlapping windows, a bell for each row."""
        how = self.how
        for weight in self.parameters():
            if how.row_stochastic:
                place = (torch.arange(how.max_len) + 0.5) * how.k / how.max_len
                bells = -2 * (place - torch.arange(how.k)[:, None] - 0.5).square()
                nn.init.normal_(weight, std=0.1)
                weight.add_(bells.clamp_min(FAR).to(weight))
            else:
                bound = (3 / (how.k + how.max_len)) ** 0.5  # Xavier's with a gain of 1/√2
                nn.init.uniform_(weight, -bound, bound)

    def _weight(self, side: str, n: int) -> tuple[Tensor, Tensor | None]:
        """M × k × n weights and, if they are shares, the logarithm of what they were divided by, M × k."""
        whole = self.key_weight if side == "keys" or self.value_weight is None else self.value_weight
        weight = whole[..., :n]
        return (weight.softmax(-1), weight.logsumexp(-1)) if self.how.row_stochastic else (weight, None)

    def pool(self, x: Tensor, mask: Tensor | None, side: str) -> Pool:
        """E x for all heads."""
        weight, log_sum = self._weight(side, x.shape[2])
        if mask is None:
            rows = _by_head("kn,bhnd->bhkd", "hkn,bhnd->bhkd", weight, x)
            return Pool(rows, weight.sum(-1)[None], None if log_sum is None else log_sum[None])
        rows = _by_head("kn,bhnd->bhkd", "hkn,bhnd->bhkd", weight, x * mask[:, None, :, None])
        return _finished(rows, torch.einsum("hkn,bn->bhk", weight, mask.to(weight.dtype)), log_sum)

    def forward(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Rows:
        key, value = self.pool(keys, mask, "keys"), self.pool(values, mask, "values")
        return Rows(key.rows, value.rows, key.log_mass)

    def prefixes(self, keys: Tensor, values: Tensor, mask: Tensor) -> Rows:
        """Rows for every block: all blocks but the one before it and itself, through their columns of E. Sums of
        blocks add up, so all prefixes cost as much as the last one."""
        key, value = (self._prefix(x, mask, side) for x, side in ((keys, "keys"), (values, "values")))
        return Rows(key.rows, value.rows, key.log_mass)

    def _prefix(self, x: Tensor, mask: Tensor, side: str) -> Pool:
        size, done = self.how.block, x.shape[2] // self.how.block - 2
        n = done * size
        weight, log_sum = self._weight(side, n)
        weight, real = weight.unflatten(2, (done, size)), mask[:, :n].unflatten(1, (done, size))
        parts = x[:, :, :n].unflatten(2, (done, size)) * real[:, None, ..., None]
        sums = _by_head("ktj,bhtjd->bthkd", "hktj,bhtjd->bthkd", weight, parts)
        totals = torch.einsum("hktj,btj->bthk", weight, real.to(weight.dtype))
        rows, total = (F.pad(y.cumsum(1), (*(0, 0) * (y.ndim - 2), 2, 0)) for y in (sums, totals))
        pool = _finished(rows, total, log_sum)
        if pool.log_mass is None:
            begun = (torch.arange(done + 2, device=x.device) < 2)[:, None, None]
            pool = replace(pool, log_mass=torch.zeros_like(total).masked_fill(begun, HIDDEN))
        return pool


class SegmentProjection(nn.Module):
    """Segments of equal length: their mean, their maximum or one trained kernel for all. n d operations for a head."""

    def __init__(self, how: Compression) -> None:
        super().__init__()
        self.how, self.linear = how, how.kind != "max"
        self.key_weight = self.value_weight = None
        if how.kind == "conv":
            shape = (how.matrices, how.stride)
            self.key_weight = nn.Parameter(torch.empty(shape))
            self.value_weight = nn.Parameter(torch.empty(shape)) if how.sharing in ("none", "headwise") else None
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """About the mean."""
        middle = 0.0 if self.how.row_stochastic else 1 / self.how.stride
        for weight in self.parameters():
            nn.init.normal_(weight, mean=middle, std=0.1 if self.how.row_stochastic else 0.1 * middle)

    def _weight(self, side: str, like: Tensor) -> Tensor:
        """M × s."""
        weight = self.key_weight if side == "keys" or self.value_weight is None else self.value_weight
        if weight is None:
            return like.new_full((1, self.how.stride), 1.0 if self.how.row_stochastic else 1 / self.how.stride)
        return weight.exp() if self.how.row_stochastic else weight

    def pool(self, x: Tensor, mask: Tensor | None, side: str) -> Pool:
        """One row for each segment that has begun."""
        n, stride = x.shape[2], self.how.stride
        short = -n % stride
        if mask is None and short:
            mask = torch.ones(x.shape[0], n, dtype=torch.bool, device=x.device)
        parts = F.pad(x, (0, 0, 0, short)).unflatten(2, (-1, stride))  # b × h × k × s × d
        held = None if mask is None else F.pad(mask, (0, short)).unflatten(1, (-1, stride))  # b × k × s
        if self.how.kind == "max":
            return self._maximum(parts, held)
        weight = self._weight(side, x)
        if held is None:
            total = weight.sum(-1)[None, :, None].expand(1, -1, parts.shape[2])
        else:
            parts = parts * held[:, None, ..., None]
            total = torch.einsum("hs,bks->bhk", weight, held.to(weight.dtype))
        rows = _by_head("s,bhksd->bhkd", "hs,bhksd->bhkd", weight, parts)
        if not self.how.row_stochastic:
            return Pool(rows, total, _empty(held))
        return _finished(rows, total, torch.zeros_like(total[:1]))

    def _maximum(self, parts: Tensor, held: Tensor | None) -> Pool:
        if held is not None:
            lowest = torch.finfo(parts.dtype).min
            parts = parts.masked_fill(~held[:, None, ..., None], lowest)
        rows = parts.amax(3)
        if held is not None:
            rows = rows * held.any(-1)[:, None, :, None]
        if held is None:
            count = rows.new_full((1, 1, rows.shape[2]), float(self.how.stride))
        else:
            count = held.sum(-1)[:, None].to(rows.dtype)
        return Pool(rows, torch.ones_like(count), _log_mass(count) if self.how.row_stochastic else _empty(held))

    def forward(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Rows:
        key, value = self.pool(keys, mask, "keys"), self.pool(values, mask, "values")
        return Rows(key.rows, value.rows, key.log_mass)

    def prefixes(self, keys: Tensor, values: Tensor, mask: Tensor) -> Rows:
        """For every block the segments of all blocks but the one before it and itself."""
        blocks = keys.shape[2] // self.how.block
        n = (blocks - 2) * self.how.block
        rows = self(keys[:, :, :n], values[:, :, :n], mask[:, :n])
        return seen_by_blocks(rows, blocks, self.how.block // self.how.stride)


class ClusterProjection(nn.Module):
    """Means of clusters of keys, and of the values that belong to them; exact for clusters of one token.

    Clusters are found in single precision and without gradient; the means have one. (sweeps + 1) n k d multiplications
    for a head. In the causal mode every completed block is clustered by itself, into block / ⌈max_len / k⌉ rows.
    """

    linear = False

    def __init__(self, how: Compression) -> None:
        super().__init__()
        self.how = how

    def reset_parameters(self) -> None:
        """There are none."""

    def forward(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Rows:
        if mask is None:
            mask = torch.ones(keys.shape[0], keys.shape[2], dtype=torch.bool, device=keys.device)
        return self._clustered(keys, values, mask, min(self.how.k, keys.shape[2]))

    def _clustered(self, keys: Tensor, values: Tensor, mask: Tensor, k: int) -> Rows:
        with torch.autocast(keys.device.type, enabled=False):
            x, y = keys.float(), values.float()
            group = clusters(x.detach(), mask, k, self.how.sweeps)
            means, mass = pooled(x, group, k, mask)
            second = spread(x, means, group, mask).to(keys.dtype) if self.how.second_order else None
            return Rows(means.to(keys.dtype), pooled(y, group, k, mask)[0].to(values.dtype), _log_mass(mass), second)

    def prefixes(self, keys: Tensor, values: Tensor, mask: Tensor) -> Rows:
        """For every block the clusters of all blocks but the one before it and itself."""
        size, blocks = self.how.block, keys.shape[2] // self.how.block
        done, k = blocks - 2, size // self.how.stride
        apart = [_blocks_as_batch(x[:, :, : done * size], size) for x in (keys, values)]
        rows = self._clustered(apart[0], apart[1], mask[:, : done * size].reshape(-1, size), k)
        return seen_by_blocks(_in_one_line(rows, keys.shape[0]), blocks, k)


PROJECTIONS: dict[str, type[LinearProjection | SegmentProjection | ClusterProjection]] = {
    "linear": LinearProjection,
    "mean": SegmentProjection,
    "max": SegmentProjection,
    "conv": SegmentProjection,
    "cluster": ClusterProjection,
}
Projection = LinearProjection | SegmentProjection | ClusterProjection


def make_projection(how: Compression) -> Projection:
    """The module for `how`; a refusal says what is impossible."""
    if how.kind not in PROJECTIONS:
        raise ProjectionDoesNotFit(f"there is no projection {how.kind!r}; choose from {', '.join(KINDS)}")
    if how.sharing not in SHARING:
        raise ProjectionDoesNotFit(f"there is no sharing {how.sharing!r}; choose from {', '.join(SHARING)}")
    if not 1 <= how.k <= how.max_len:
        raise ProjectionDoesNotFit(f"k is {how.k}: there are {how.max_len} positions to project to 1 or more rows")
    if how.second_order and how.kind != "cluster":
        raise ProjectionDoesNotFit(f"a second-order term needs clusters; the projection is {how.kind!r}")
    if how.block and how.kind != "linear" and how.block % how.stride:
        raise ProjectionDoesNotFit(
            f"blocks of {how.block} do not hold whole segments of {how.stride} tokens (⌈{how.max_len} / {how.k}⌉)"
        )
    return PROJECTIONS[how.kind](how)


def seen_by_blocks(rows: Rows, blocks: int, each: int) -> Rows:
    """The same rows for every block, hidden where not yet complete: block t sees those of blocks 0 … t − 2."""
    count = rows.keys.shape[2]
    place = torch.arange(count, device=rows.keys.device)
    start = torch.arange(blocks, device=rows.keys.device)[:, None]
    hidden = (place >= (start - 1) * each)[:, None]  # T × 1 × k
    mass = rows.keys.new_zeros(1, 1, count) if rows.log_mass is None else rows.log_mass

    def repeated(x: Tensor) -> Tensor:
        return x[:, None].expand(-1, blocks, *x.shape[1:])

    second = None if rows.spread is None else repeated(rows.spread)
    return Rows(repeated(rows.keys), repeated(rows.values), mass[:, None].masked_fill(hidden, HIDDEN), second)


def _blocks_as_batch(x: Tensor, size: int) -> Tensor:
    """b × h × n × d → b T × h × size × d."""
    return x.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)


def _in_one_line(rows: Rows, batch: int) -> Rows:
    """Rows of blocks, b T × h × k (× d), as those of one sequence, b × h × T k (× d)."""

    def joined(x: Tensor) -> Tensor:
        return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)

    mass, second = (None if x is None else joined(x) for x in (rows.log_mass, rows.spread))
    return Rows(joined(rows.keys), joined(rows.values), mass, second)


def _by_head(one: str, many: str, weight: Tensor, x: Tensor) -> Tensor:
    """An einsum with one matrix for all heads, or with one for each."""
    return torch.einsum(one, weight[0], x) if weight.shape[0] == 1 else torch.einsum(many, weight, x)


def _finished(rows: Tensor, total: Tensor, log_sum: Tensor | None) -> Pool:
    """Shares over some tokens, made shares over those that are there."""
    if log_sum is None:
        return Pool(rows, total)
    held = total.clamp_min(torch.finfo(total.dtype).tiny)
    return Pool(rows / held[..., None], torch.ones_like(total), _log_mass(total, log_sum))


def _log_mass(mass: Tensor, top: Tensor | float = 0.0) -> Tensor:
    tiny = torch.finfo(mass.dtype).tiny
    return (mass.clamp_min(tiny).log() + top).masked_fill(mass <= tiny, HIDDEN)


def _empty(held: Tensor | None) -> Tensor | None:
    """What hides segments without a token, b × 1 × k."""
    if held is None:
        return None
    return torch.zeros(held.shape[:2], device=held.device).masked_fill(~held.any(-1), HIDDEN)[:, None]

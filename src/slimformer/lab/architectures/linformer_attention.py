"""Attention over k rows in place of n keys (Linformer), on `scaled_dot_product_attention`.

    head = softmax( s Q (E K)ᵀ + log-mass ) F V            E, F ∈ ℝ^{k×n}, s = 1/√d

n k (2d) multiplications for a head in place of n² (2d), and no matrix n × n. Where one E serves all heads, E x is taken
before keys and values are made, E (x W) = (E x) W: two of the four D × D products then see k tokens, not n.

Causal mode, blocks of B tokens. A query in block t reads in one softmax

    its own block up to itself  ·  block t − 1, whole  ·  blocks 0 … t − 2, compressed to k rows in all

so no row ever holds a token that comes later. `linear`: the rows of block t are E[:, :(t−1)B] K[:(t−1)B], Linformer on
the part that is over. Segments and clusters: B / ⌈max_len / k⌉ rows for each block that is over. n (k + 2B) (2d)
multiplications for a head: linear in n for fixed k and B; the only mask is B × (k + 2B).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slimformer.errors import ProjectionDoesNotFit, SequenceTooLong
from slimformer.lab.architectures.linformer_config import LinformerConfig
from slimformer.lab.architectures.linformer_projections import (
    HIDDEN,
    TRAINED,
    WHOLE,
    Compression,
    Projection,
    Rows,
    make_projection,
)

WIDTH = 8  # widths of augmented queries and keys are multiples of it, which kernels like


class LinformerAttention(nn.Module):
    """Multi-head self-attention of a layer, over compressed keys and values; projection "exact" is the standard one.

    Heads may differ in k (trained matrices then need sharing "none"). With sharing "layerwise" the
    trained projection belongs to the whole model and comes with every call. Rows of pads come out finite and mean
    nothing. Wang et al., arXiv 2006.04768.
    """

    def __init__(self, config: LinformerConfig, layer: int = 0) -> None:
        super().__init__()
        width, self.heads, self.kind = config.hidden_size, config.num_attention_heads, config.projection
        if width % self.heads:
            raise ProjectionDoesNotFit(f"a width of {width} has no {self.heads} equal heads")
        self.max_len, self.causal = config.max_position_embeddings, config.is_causal
        self.dropout = config.attention_probs_dropout_prob
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.groups: list[tuple[list[int], Compression]] = []
        self.projections = nn.ModuleList()
        sizes = self.sizes = config.layer_k(layer)
        if self.kind in WHOLE:
            return
        self.groups = [(members, compression_of(config, k, len(members))) for k, members in head_groups(sizes).items()]
        if len(self.groups) > 1 and self.kind in TRAINED and config.sharing != "none":
            raise ProjectionDoesNotFit(
                f"sharing {config.sharing!r} is one matrix for all heads, which has one k, not {sizes}"
            )
        if not config.one_projection:
            self.projections.extend(make_projection(how) for _, how in self.groups)

    def forward(self, x: Tensor, mask: Tensor | None = None, shared: Projection | None = None) -> Tensor:
        """b × n × D to b × n × D; `mask` is b × n, true for real tokens."""
        if x.shape[1] > self.max_len:
            raise SequenceTooLong(f"the input has {x.shape[1]} tokens, the attention was made for {self.max_len}")
        mask = None if mask is None else mask.bool()
        query = self._split(self.query(x))
        projections: list[Any] = list(self.projections) or [shared]
        if self.kind not in WHOLE and projections[0] is None:
            raise ProjectionDoesNotFit("sharing 'layerwise': the projection of the model has to come with the input")
        if not self.causal and len(projections) == 1 and _commutes(projections[0]):
            context = attend(query, self._compressed_first(x, mask, projections[0]), self._dropout)
        else:
            key, value = self._split(self.key(x)), self._split(self.value(x))
            context = self._context(query, key, value, mask, projections)
        return self.out(context.transpose(1, 2).flatten(2))

    def _context(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, projections: list[Any]
    ) -> Tensor:
        if self.kind == "exact":
            return exact_attention(query, key, value, mask, self._dropout, causal=self.causal)
        if self.kind == "svd":
            return low_rank_attention(query, key, value, mask, self.sizes, self._dropout)
        if len(projections) == 1:
            return self._one_k(query, key, value, mask, projections[0])
        context = torch.empty_like(query)
        for (members, _), projection in zip(self.groups, projections, strict=True):
            part = self._one_k(query[:, members], key[:, members], value[:, members], mask, projection)
            context[:, members] = part.to(context.dtype)
        return context

    def _one_k(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, projection: Projection) -> Tensor:
        if self.causal:
            return causal_attention(query, key, value, mask, projection, self._dropout)
        return attend(query, projection(key, value, mask), self._dropout)

    def _compressed_first(self, x: Tensor, mask: Tensor | None, projection: Any) -> Rows:
        pool = projection.pool(x[:, None], mask, "keys")
        other = pool if projection.value_weight is None else projection.pool(x[:, None], mask, "values")
        key, value = (
            F.linear(p.rows[:, 0], layer.weight) + (0 if layer.bias is None else p.total[:, 0, :, None] * layer.bias)
            for p, layer in ((pool, self.key), (other, self.value))
        )
        return Rows(self._split(key), self._split(value), pool.log_mass)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    @property
    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0


def head_groups(sizes: Sequence[int]) -> dict[int, list[int]]:
    """k → the heads that have it."""
    return {k: [h for h, other in enumerate(sizes) if other == k] for k in dict.fromkeys(sizes)}


def compression_of(config: LinformerConfig, k: int, heads: int) -> Compression:
    """How heads with this k are compressed. A causal block has, unless the config says otherwise, k tokens, in whole
    segments, because every block has its own k rows of what is over, and moving those about costs more than a wider
    window."""
    how = Compression(
        config.projection, k, config.max_position_embeddings, heads, config.sharing, config.row_stochastic,
        config.second_order, config.cluster_sweeps,
    )  # fmt: skip
    if not config.is_causal:
        return how
    step = 1 if how.kind == "linear" else how.stride
    return replace(how, block=config.block_size or -(-max(16, k) // step) * step)


def _commutes(projection: Projection | None) -> bool:
    """Is (E x) W the same as E (x W): one E for all heads, and linear?"""
    return projection is not None and projection.linear and projection.how.matrices == 1


def attend(query: Tensor, rows: Rows, dropout: float = 0.0, mask: Tensor | None = None) -> Tensor:
    """softmax(s q·k + log-mass + ½ s² q² S) v in one call of SDPA, linear memory also while training.

    What is added for each key is an inner product with one more coordinate, [s q, 1]·[k, log-mass], because fused
    kernels take no mask that is trained; so is the second order, (s q)²·½S. A log-mass without gradient is a mask.
    """
    mass = rows.log_mass
    if mass is None and rows.spread is None:
        return F.scaled_dot_product_attention(query, rows.keys, rows.values, mask, dropout)
    if mask is None and mass is not None and rows.spread is None and not mass.requires_grad:
        return F.scaled_dot_product_attention(query, rows.keys, rows.values, mass[:, :, None].to(query.dtype), dropout)
    b, h, k, d = rows.keys.shape
    scaled = query * d**-0.5
    left, right = [scaled, torch.ones_like(query[..., :1])], [rows.keys]
    right.append((rows.keys.new_zeros(()) if mass is None else mass[..., None]).expand(b, h, k, 1).to(query.dtype))
    if rows.spread is not None:
        left.append(scaled.square() / 2)
        right.append(rows.spread)
    width = -(-sum(x.shape[-1] for x in right) // WIDTH) * WIDTH
    q, k_ = (_widened(torch.cat(x, -1), width) for x in (left, right))
    return F.scaled_dot_product_attention(q, k_, _widened(rows.values, width), mask, dropout, scale=1.0)[..., :d]


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, projection: Projection, dropout: float = 0.0
) -> Tensor:
    """Own block, the block before it, and rows of what is over: blocks are a batch, so one call serves them all."""
    b, n = query.shape[0], query.shape[2]
    size = projection.how.block
    short, blocks = -n % size, -(-n // size)
    if mask is None:
        mask = torch.ones(b, n, dtype=torch.bool, device=query.device)
    query, key, value = (F.pad(x, (0, 0, 0, short)) for x in (query, key, value))
    mask = F.pad(mask, (0, short))
    hidden = torch.zeros(b, 1, blocks * size, dtype=query.dtype, device=query.device)
    window = Rows(_windows(key, size), _windows(value, size), _windowed_bias(hidden, mask, size))
    done = projection.prefixes(key, value, mask) if blocks > 2 else None
    rows = window if done is None else _joined(done, window)
    flat: dict[str, Any] = {name: None if x is None else x.flatten(0, 1) for name, x in vars(rows).items()}
    rows = Rows(**flat)
    own = torch.ones(size, size, dtype=torch.bool, device=query.device).tril()
    seen = F.pad(own, (rows.keys.shape[2] - size, 0), value=True)
    blocked = query.unflatten(2, (blocks, size)).transpose(1, 2).flatten(0, 1)
    context = attend(blocked, rows, dropout, seen)
    return context.unflatten(0, (b, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :n]


def _windows(x: Tensor, size: int) -> Tensor:
    """b × h × n × d → b × T × h × 2B × d: for every block the one before it (zeros for the first), and itself."""
    own = x.unflatten(2, (-1, size)).transpose(1, 2)
    return torch.cat([F.pad(own[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0)), own], 3)


def _windowed_bias(zeros: Tensor, mask: Tensor, size: int) -> Tensor:
    """What hides pads and the block before the first, b × T × 1 × 2B."""
    own = zeros.masked_fill(~mask[:, None], HIDDEN).unflatten(2, (-1, size)).transpose(1, 2)
    return torch.cat([F.pad(own[:, :-1], (0, 0, 0, 0, 1, 0), value=HIDDEN), own], 3)


def _joined(done: Rows, window: Rows) -> Rows:
    """One list of keys: rows of what is over, then the window, whose keys are single tokens."""
    assert done.log_mass is not None and window.log_mass is not None
    b, blocks, h = done.keys.shape[:3]
    masses = [x.expand(b, blocks, h, x.shape[-1]) for x in (done.log_mass, window.log_mass)]
    second = None
    if done.spread is not None:
        second = torch.cat([done.spread, torch.zeros_like(window.keys)], 3)
    keys, values = torch.cat([done.keys, window.keys], 3), torch.cat([done.values, window.values], 3)
    return Rows(keys, values, torch.cat([x.to(keys.dtype) for x in masses], 3), second)


def _widened(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[-1]))


def exact_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0, *, causal: bool = False
) -> Tensor:
    """Standard attention. A mask in the causal mode costs n × n; models of this package need none there."""
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
    seen = mask[:, None, None]
    if causal:
        n = key.shape[2]
        seen = seen & torch.ones(n, n, dtype=torch.bool, device=key.device).tril()
    bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill(~seen, HIDDEN)
    return F.scaled_dot_product_attention(query, key, value, bias, dropout)


def low_rank_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sizes: Sequence[int], dropout: float = 0.0
) -> Tensor:
    """P_k V, P_k = Σ_{i ≤ k} σ_i u_i v_iᵀ the best rank k of each head's own P (eq. 6 of the paper).

    What no E known before the input can do better than, and the reason there is an E: the decomposition costs n³ where
    attention costs n² d. P_k V = U_k U_kᵀ (P V); U_k is taken as given by the gradient, which near equal σ has none.
    """
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    weights = scores.softmax(-1)
    if mask is not None:  # rows of pads would take ranks; a text of pads alone has no weights
        weights = weights.nan_to_num().masked_fill(~mask[:, None, :, None], 0)
    whole = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
    left = torch.linalg.svd(whole, full_matrices=False).U[..., : max(sizes)]
    held = torch.arange(left.shape[-1], device=left.device) < torch.tensor(sizes, device=left.device)[:, None]
    left = (left * held[None, :, None]).to(value.dtype)
    return left @ (left.mT @ (F.dropout(weights, dropout, training=dropout > 0) @ value))

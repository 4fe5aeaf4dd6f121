"""Attention with as few matrices as a form allows: for training from scratch, and for asking what is needed.

A head scores a query x and a key y by xᵀ W_qk y / √d and writes W_voᵀ Σ P y. Every form here is a way to hold W_qk or
W_vo of rank d in fewer parameters (`minimal_config` counts them), and every form is computed as queries, keys and
values of width d, so that all of them run through the same fused kernel.

The collapse for several heads. Of W_q W_kᵀ only the product matters, so for any invertible B (W_q Bᵀ)(W_k B⁻¹)ᵀ is the
same head. Choosing B as the d rows J of W_k makes those rows the identity: keys are x_J + x_rest K. Nothing is lost
(where the rows are independent), d² parameters a head are saved, and with one head W_k is gone: W_qk = W_q W_kᵀ. Head
h takes the coordinates J = {h d, …, (h + 1) d − 1}. Values and outputs collapse in the same way.

Scale at the start. With inputs of unit variance (behind a norm) scores x W_qk y / √d should be of order one, or the
softmax is a one-hot. Forms T Tᵀ are dangerous in another way: x T Tᵀ x = ‖Tᵀx‖² adds up where others average out, so a
token attends to itself. T ~ N(0, σ²) has E‖Tᵀx‖²/√d = σ² n/√d, n the entries of T: σ² = √d/n makes it one. With one
head that is σ = √2 D^(−3/4); σ = 1 would make it D^1.5/2, and attention the identity.

References: Reducing the Transformer Architecture to a Minimum (arXiv 2410.13732); shaped attention: He & Hofmann, arXiv
2311.01906; symmetric and skew parts of trained W_qk: Saponati et al., arXiv 2502.10927.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from slimformer.lab.architectures.minimal_config import MinimalConfig, attention_macs


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Batch × length × (heads · width) to batch × heads × length × width."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class GaugeMap(nn.Module):
    """x ↦ x_J + x_rest K + b for every head: a D × d map whose rows J are the identity. H (D − d) d parameters."""

    def __init__(self, width: int, heads: int, *, bias: bool) -> None:
        super().__init__()
        self.heads, self.width, self.unit = heads, width, width // heads
        self.rest = nn.Parameter(torch.empty(heads, width - self.unit, self.unit)) if heads > 1 else None
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    @property
    def variance(self) -> float:
        """Of an output at the start."""
        return 1.0 if self.rest is None else 2.0

    def reset(self) -> None:
        if self.rest is not None:
            init.normal_(self.rest, std=(self.width - self.unit) ** -0.5)
        if self.bias is not None:
            init.zeros_(self.bias)

    def weight(self, like: Tensor) -> Tensor:
        """H × d × D; coordinates J of head h are columns h d …"""
        eye = torch.eye(self.unit, device=like.device, dtype=like.dtype)
        if self.rest is None:
            return eye[None]
        whole = torch.cat([eye.expand(self.heads, -1, -1), self.rest], dim=1)
        return _rolled(whole, self.unit).mT

    def forward(self, x: Tensor) -> Tensor:
        if self.rest is None:
            return x if self.bias is None else x + self.bias
        return F.linear(x, self.weight(x).flatten(0, 1), self.bias)


class PassOn(nn.Module):
    """The map that changes nothing, without parameters: what reads the heads where there is no W_o."""

    bias = None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @property
    def weight(self) -> Tensor:
        """As if there were one."""
        return torch.eye(self.width)

    def forward(self, x: Tensor) -> Tensor:
        return x


class SharedScores(nn.Module):
    """W_k = W_q: scores symmetric and positive, of rank d."""

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        self.heads, self.unit, width = config.num_attention_heads, config.head_dim or 0, config.hidden_size
        self.map = nn.Linear(width, self.heads * self.unit, bias=config.qkv_bias)

    def reset(self, *, silent: bool) -> None:
        """`silent` scores are impossible: where T is zero, so is the gradient of T Tᵀ."""
        _reset_linear(self.map, (self.map.in_features * self.unit**0.5) ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q = split_heads(self.map(x), self.heads)
        return q, q

    def weights(self) -> tuple[Tensor, Tensor]:
        W = self.map.weight.unflatten(0, (self.heads, self.unit))
        return W, W


class CollapsedScores(nn.Module):
    """W_q whole, W_k but for the rows that can be the identity; one W_qk with one head. No bias of keys: softmax does
    not see it."""

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        self.heads, width = config.num_attention_heads, config.hidden_size
        self.map = nn.Linear(width, width, bias=config.qkv_bias)
        self.keys = GaugeMap(width, self.heads, bias=False)

    def reset(self, *, silent: bool) -> None:
        self.keys.reset()
        _reset_linear(self.map, 0.0 if silent else (self.map.in_features * self.keys.variance) ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return split_heads(self.map(x), self.heads), split_heads(self.keys(x), self.heads)

    def weights(self) -> tuple[Tensor, Tensor]:
        W = self.map.weight
        return W.unflatten(0, (self.heads, -1)), self.keys.weight(W)


class CholeskyScores(nn.Module):
    """T Tᵀ with T lower trapezoidal, D × d: as W_k = W_q, without the d (d − 1)/2 parameters a rotation makes idle."""

    index: Tensor

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        self.heads, self.unit, self.width = config.num_attention_heads, config.head_dim or 0, config.hidden_size
        entries = _triangle(self.width, self.unit)
        self.register_buffer("index", entries, persistent=False)
        self.triangle = nn.Parameter(torch.empty(self.heads, len(entries)))
        self.bias = nn.Parameter(torch.empty(self.heads * self.unit)) if config.qkv_bias else None

    def reset(self, *, silent: bool) -> None:
        """`silent` scores are impossible, as with `SharedScores`."""
        init.copy_(self.index, _triangle(self.width, self.unit))
        init.normal_(self.triangle, std=(self.unit**0.5 / self.triangle.shape[1]) ** 0.5)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q = split_heads(F.linear(x, self.weights()[0].flatten(0, 1), self.bias), self.heads)
        return q, q

    def weights(self) -> tuple[Tensor, Tensor]:
        T = _filled(self.triangle, self.index, (self.width, self.unit))
        W = _rolled(T, self.unit).mT
        return W, W


class CoreScores(nn.Module):
    """[I; K] M [I; K]ᵀ: keys k = x_J + x_rest K, queries k M. M = L + Lᵀ is symmetric and of any signature; with a
    rank, M = L + Lᵀ + U Vᵀ − V Uᵀ, which starts symmetric (V = 0)."""

    index: Tensor

    def __init__(self, config: MinimalConfig, *, rank: int) -> None:
        super().__init__()
        self.heads, self.unit = config.num_attention_heads, config.head_dim or 0
        self.keys = GaugeMap(config.hidden_size, self.heads, bias=config.qkv_bias)
        entries = _triangle(self.unit, self.unit)
        self.register_buffer("index", entries, persistent=False)
        self.triangle = nn.Parameter(torch.empty(self.heads, len(entries)))
        self.left, self.right = (
            nn.Parameter(torch.empty(self.heads, self.unit, rank)) if rank else None for _ in range(2)
        )

    def reset(self, *, silent: bool) -> None:
        self.keys.reset()
        init.copy_(self.index, _triangle(self.unit, self.unit))
        init.normal_(self.triangle, std=0.0 if silent else self.unit**-0.5 / self.keys.variance)
        if self.left is not None and self.right is not None:
            init.normal_(self.left, std=self.unit**-0.5)
            init.zeros_(self.right)

    def core(self) -> Tensor:
        """M, H × d × d."""
        L = _filled(self.triangle, self.index, (self.unit, self.unit))
        M = L + L.mT
        if self.left is None or self.right is None:
            return M
        skew = self.left @ self.right.mT
        return M + skew - skew.mT

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k = split_heads(self.keys(x), self.heads)
        return k @ self.core(), k

    def weights(self) -> tuple[Tensor, Tensor]:
        W = self.keys.weight(self.triangle)
        return self.core().mT @ W, W


SCORES: dict[str, Callable[[MinimalConfig], Any]] = {
    "shared": SharedScores,
    "collapsed": CollapsedScores,
    "symmetric": CholeskyScores,
    "symmetric-indefinite": lambda config: CoreScores(config, rank=0),
    "symmetric-skew": lambda config: CoreScores(config, rank=config.skew_rank or 0),
}


class MinimalAttention(nn.Module):
    """softmax(x W_qk xᵀ / √d) x W_vo, head by head, in the form that `config.qk` and `config.vo` name.

    `config.shaped`: α I + β A − γ C in place of the attention A, C attending to all alike (what A is while scores are
    zero), and α, β, γ one number each for every head, one at the start. Where it can be had scores start at zero then,
    so that the whole is the identity. Cost: `minimal_config.attention_macs` and 2 T H d per token. The full form has
    the modules and attributes of stock attentions.
    """

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        self.config, self.num_attention_heads, self.head_dim = config, config.num_attention_heads, config.head_dim or 0
        self.scaling, self.is_causal = self.head_dim**-0.5, False
        self.attention_dropout = float(config.attention_probs_dropout_prob)
        width, inner = config.hidden_size, self.num_attention_heads * self.head_dim
        if config.qk == "full":
            self.q_proj = nn.Linear(width, inner, bias=config.qkv_bias)
            self.k_proj = nn.Linear(width, inner, bias=config.qkv_bias)
        else:
            self.scores = SCORES[config.qk](config)
        if config.vo == "full":
            self.v_proj = nn.Linear(width, inner, bias=config.qkv_bias)
        elif config.vo == "collapsed":
            self.values = GaugeMap(width, self.num_attention_heads, bias=False)
        self.o_proj: Any = PassOn(width) if config.vo == "none" else nn.Linear(inner, width)
        self.shape = nn.Parameter(torch.empty(3, self.num_attention_heads)) if config.shaped else None

    @property
    def fixed(self) -> str:
        """Why heads and ranks cannot be cut by themselves; empty where they can."""
        config = self.config
        if config.qk == config.vo == "full" and not config.shaped:
            return ""
        form = f"qk={config.qk}, vo={config.vo}" + (", shaped" if config.shaped else "")
        return f"{form}: heads are cut where queries, keys, values and outputs have a matrix each, and none is shaped"

    @property
    def macs(self) -> int:
        """Per token, scores and context apart."""
        return attention_macs(self.config)

    def reset(self) -> None:
        """Weights at the start: scores of order one, and what is written shrinks with depth (2 L)^−½."""
        config, width = self.config, self.config.hidden_size
        if config.qk == "full":
            _reset_linear(self.q_proj, 0.0 if config.shaped else width**-0.5)
            _reset_linear(self.k_proj, width**-0.5)
        else:
            self.scores.reset(silent=config.shaped)
        if config.vo == "full":
            _reset_linear(self.v_proj, width**-0.5)
        elif config.vo == "collapsed":
            self.values.reset()
        if config.vo != "none":
            _reset_linear(self.o_proj, (2 * width * config.num_hidden_layers) ** -0.5)
        if self.shape is not None:
            init.ones_(self.shape)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> tuple[Any, Any]:
        query, key, value = self.project(hidden_states)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, _eager)
        dropout = self.attention_dropout if self.training else 0.0
        context, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        if self.shape is not None:
            alpha, beta, gamma = self.shape[:, :, None]
            everyone = _mean_of_keys(value, attention_mask)
            context = alpha * value.transpose(1, 2) + beta * context - gamma * everyone
        return self.o_proj(context.flatten(2)), weights

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each batch × heads × length × d."""
        heads = self.num_attention_heads
        if self.config.qk == "full":
            q, k = split_heads(self.q_proj(x), heads), split_heads(self.k_proj(x), heads)
        else:
            q, k = self.scores(x)
        value = {"full": lambda: self.v_proj(x), "collapsed": lambda: self.values(x), "none": lambda: x}
        return q, k, split_heads(value[self.config.vo](), heads)

    @torch.no_grad()
    def factors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W_q, W_k, W_v, W_o of every form as if it were full, H × d × D: scores x W_qᵀ W_k y, written W_oᵀ W_v y."""
        heads, config = self.num_attention_heads, self.config
        q, k = (
            (m.weight.unflatten(0, (heads, -1)) for m in (self.q_proj, self.k_proj))
            if config.qk == "full"
            else self.scores.weights()
        )
        if config.vo == "none":
            own = torch.eye(config.hidden_size, device=q.device, dtype=q.dtype).unflatten(0, (heads, -1))
            return q, k, own, own
        v = self.v_proj.weight.unflatten(0, (heads, -1)) if config.vo == "full" else self.values.weight(q)
        return q, k, v, self.o_proj.weight.mT.unflatten(0, (heads, -1))


@torch.no_grad()
def collapse(full: MinimalAttention, config: MinimalConfig) -> MinimalAttention:
    """The collapsed form of a full attention: the same function, H d² parameters less for each pair, no bias of keys
    and values. Cost O(H d² D).

    Needs rows J of W_k and W_v to be independent in every head. A dropout of attention makes the fold of the values'
    bias true in the mean only.
    """
    new, heads = MinimalAttention(config).to(full.o_proj.weight), full.num_attention_heads
    W_q, W_k, W_v, W_o = (W.double() for W in full.factors())  # H × d × D
    K, B = _gauged(W_k)
    new.scores.map.weight.copy_((B @ W_q).flatten(0, 1))
    if full.q_proj.bias is not None:
        new.scores.map.bias.copy_((B @ full.q_proj.bias.double().view(heads, -1, 1)).flatten())
    V, C = _gauged(W_v)
    new.o_proj.weight.copy_((C @ W_o).flatten(0, 1).mT)
    shift = 0 if full.v_proj.bias is None else full.v_proj.bias.double() @ W_o.flatten(0, 1)
    new.o_proj.bias.copy_(full.o_proj.bias + shift)
    for gauge, rest in ((new.scores.keys, K), (new.values, V)):
        if gauge.rest is not None:
            gauge.rest.copy_(rest)
    return new


def _gauged(W: Tensor) -> tuple[Tensor, Tensor]:
    """For H × d × D maps Wᵀ = [I; K] B, rows J first: K (H × (D − d) × d), and B as it multiplies the other map."""
    d = W.shape[1]
    ordered = torch.stack([part.mT.roll(-h * d, 0) for h, part in enumerate(W)])
    B = ordered[:, :d]
    return torch.linalg.solve(B, ordered[:, d:], left=False), B


def _triangle(rows: int, columns: int) -> Tensor:
    """Places of the entries on and below the diagonal, in a flattened rows × columns matrix."""
    i, j = torch.tril_indices(rows, columns)
    return i * columns + j


def _filled(entries: Tensor, index: Tensor, shape: tuple[int, int]) -> Tensor:
    empty = entries.new_zeros(len(entries), shape[0] * shape[1])
    return empty.index_copy(1, index, entries).unflatten(1, shape)


def _rolled(W: Tensor, unit: int) -> Tensor:
    """H × D × d, rows of head h moved down by h · unit: what was first now belongs to its own coordinates."""
    heads, width, _ = W.shape
    if heads == 1:
        return W
    rows = torch.arange(width, device=W.device) - unit * torch.arange(heads, device=W.device)[:, None]
    return W.gather(1, (rows % width)[..., None].expand_as(W))


def _reset_linear(layer: nn.Linear, std: float) -> None:
    init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        init.zeros_(layer.bias)


def _mean_of_keys(value: Tensor, mask: Tensor | None) -> Tensor:
    """Values averaged over the keys that may be seen: batch × 1 × heads × d. Every query sees the same keys."""
    if mask is None:
        return value.mean(2)[:, None]
    seen = (mask if mask.dtype == torch.bool else mask == 0)[:, :, :1].to(value.dtype)
    return ((seen / seen.sum(-1, keepdim=True).clamp_min(1)) @ value).transpose(1, 2)


def _eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout: float,
    scaling: float, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention in plain matrix products, with its weights."""
    scores = query @ key.mT * scaling + (0 if mask is None else mask)
    weights = scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    weights = F.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2), weights

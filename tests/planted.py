"""Tiny models into which something superfluous was planted, and inputs with every kind of padding that is legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from families import LENGTH, VOCABULARY, attention_part, tiny
from slimformer.models import FAMILIES, Site, describe
from slimformer.rewrite.exact_attention import mapped_part

BIASES: dict[str, dict[str, Any]] = {"llama": {"attention_bias": True}}  # of the stock sizes only this one can have b_o


def rows_of(layer: Any) -> Tensor:
    """The weight as outputs × inputs, the one the layer has, not a copy."""
    return layer.weight.data.mT if isinstance(layer, Conv1D) else layer.weight.data


def attention_rows(model: PreTrainedModel, site: Site, role: int) -> tuple[Tensor, Tensor | None]:
    """Weight (heads × width × D) and bias (heads × width) of queries, keys or values, to be changed in place."""
    layer: Any = model.get_submodule(site.writers[role].module)
    counts = [(site.units // w.shared) * w.rows for w in site.writers]
    start = sum(counts[: site.writers[role].part])
    part = slice(start, start + counts[role]) if site.writers[role].parts > 1 else slice(None)
    W = rows_of(layer)[part]
    b = None if layer.bias is None else layer.bias.data[part]
    width = site.writers[role].rows
    assert torch.equal(W.double(), mapped_part(model, site, role)[0])
    return W.unflatten(0, (-1, width)), None if b is None else b.unflatten(0, (-1, width))


def _silent_heads(model: PreTrainedModel, heads: Site) -> None:
    """The last two query heads read nothing: one group where queries are grouped."""
    columns = rows_of(model.get_submodule(heads.reader))
    columns[:, -2 * heads.unit :] = 0


def _orthogonal_heads(model: PreTrainedModel, heads: Site) -> None:
    """The first query head of every group reads only coordinates its values never have, though neither is zero."""
    W, b = attention_rows(model, heads, 2)
    W[:, :4] = 0
    if b is not None:
        b[:, :4] = 0
    out = rows_of(model.get_submodule(heads.reader))
    for h in range(0, heads.units, heads.group if heads.group > 1 else 2):
        out[:, h * heads.unit + 4 : (h + 1) * heads.unit] = 0


def _low_value_rank(model: PreTrainedModel, heads: Site) -> None:
    """Values of rank 5 that mix all coordinates; of these the output reads 3."""
    W, b = attention_rows(model, heads, 2)
    mix = torch.randn(len(W), 3, 5, dtype=W.dtype)
    W[:, 5:] = mix @ W[:, :5]
    if b is not None:
        b[:, 5:] = (mix @ b[:, :5, None])[..., 0]
    out = rows_of(model.get_submodule(heads.reader))
    blocks = out.unflatten(1, (heads.units, heads.unit))
    blocks[:, :, 3:] = 0


def _low_score_rank(model: PreTrainedModel, heads: Site) -> None:
    """Keys of rank 6 whose queries use 4; where planes turn, planes 1 and 2 are zero in keys or in queries."""
    (Q, b_q), (K, b_k) = attention_rows(model, heads, 0), attention_rows(model, heads, 1)
    if attention_part(model.config.model_type).rotary:
        for X, b, plane in ((K, b_k, 1), (Q, b_q, 2)):
            for row in (plane, plane + 4):
                X[:, row] = 0
                if b is not None:
                    b[:, row] = 0
        return
    mix = torch.randn(len(K), 2, 6, dtype=K.dtype)
    K[:, 6:] = mix @ K[:, :6]
    if b_k is not None:
        b_k[:, 6:] = (mix @ b_k[:, :6, None])[..., 0]
    Q[:, 4:] = 0
    if b_q is not None:
        b_q[:, 4:] = 0


def _no_attention(model: PreTrainedModel, heads: Site) -> None:
    """No head of the block writes anything."""
    rows_of(model.get_submodule(heads.reader)).zero_()


def _uniform_attention(model: PreTrainedModel, heads: Site) -> None:
    """No query asks for anything."""
    Q, b_q = attention_rows(model, heads, 0)
    Q.zero_()
    if b_q is not None:
        b_q.zero_()


def _duplicates(model: PreTrainedModel, neurons: Site) -> None:
    """Sixteen copies, scaled where the activation or a gate lets a factor through."""
    *gates, up = [model.get_submodule(writer.module) for writer in neurons.writers]
    relu = "relu" in {getattr(model.config, key, "") for key in ("activation_function", "hidden_act", "activation")}
    scale = torch.ones(16) if not (gates or relu) else torch.linspace(0.5, 3, 16) * (-1 if gates else 1)
    for layer, c in [*((gate, torch.ones(16)) for gate in gates), (up, scale)]:
        W = rows_of(layer)
        W[-16:] = c.to(W)[:, None] * W[:16]
        if layer.bias is not None:
            layer.bias.data[-16:] = c.to(W) * layer.bias.data[:16]


def _dead(model: PreTrainedModel, neurons: Site) -> None:
    """Four that are not read, four that read nothing, and, with ReLU, eight whose bias no input can make up for."""
    rows_of(model.get_submodule(neurons.reader))[:, :4] = 0
    for writer in neurons.writers:
        layer: Any = model.get_submodule(writer.module)
        rows_of(layer)[4:8] = 0
        if model.config.model_type == "opt":
            layer.bias.data[8:16] = -100


def _uneven(model: PreTrainedModel, neurons: Site) -> None:
    """Some rows far larger than others."""
    rows_of(model.get_submodule(neurons.writers[-1].module))[::3] *= 100


def _nothing(_model: PreTrainedModel, _site: Site) -> None:
    """As it is drawn."""


# What is planted, the site it is planted in, and the rewrite that must find it.
PLANTS: dict[str, tuple[Callable[[PreTrainedModel, Site], None], str, str]] = {
    "value biases": (_nothing, "attn.heads", "value-bias"),
    "key biases": (_nothing, "attn.heads", "key-bias"),
    "silent heads": (_silent_heads, "attn.heads", "silent-heads"),
    "orthogonal heads": (_orthogonal_heads, "attn.heads", "silent-heads"),
    "low value rank": (_low_value_rank, "attn.heads", "value-ranks"),
    "no attention": (_no_attention, "attn.heads", "value-ranks"),
    "low score rank": (_low_score_rank, "attn.heads", "score-ranks"),
    "uniform attention": (_uniform_attention, "attn.heads", "score-ranks"),
    "duplicates": (_duplicates, "ffn.hidden", "duplicate-neurons"),
    "dead": (_dead, "ffn.hidden", "dead-neurons"),
    "scales": (_uneven, "ffn.hidden", "scales"),
    "interpolation": (_nothing, "attn.heads", "interpolation"),
}


@torch.no_grad()
def planted(
    model_type: str, *plants: str, dtype: torch.dtype = torch.float64, blocks: tuple[int, ...] = (0, 2), **sizes: Any
) -> PreTrainedModel:
    """A tiny model in that precision with these planted in these of its three blocks."""
    model: Any = tiny(model_type, **{**BIASES.get(model_type, {}), **sizes}).to(dtype)
    torch.manual_seed(1)
    for name in plants:
        plant, kind, _ = PLANTS[name]
        for site in describe(model):
            if site.kind == kind and site.block in blocks:
                plant(model, site)
    return model


def paddings(model: PreTrainedModel) -> dict[str, dict[str, Tensor]]:
    """Inputs without a mask, with a full one, and padded on the right and on the left; images know no padding."""
    generator = torch.Generator().manual_seed(5)
    if FAMILIES[model.config.model_type].image:
        return {"image": {"pixel_values": torch.randn(3, 3, 16, 16, generator=generator).to(model.dtype)}}
    ids = torch.randint(5, VOCABULARY, (4, LENGTH), generator=generator)
    lengths = torch.tensor([[LENGTH], [11], [5], [14]])
    right = (torch.arange(LENGTH) < lengths).long()
    full = torch.ones_like(right)
    masks = {"full": full, "right": right, "left": right.flip(1)}
    return {"none": {"input_ids": ids}} | {k: {"input_ids": ids, "attention_mask": m} for k, m in masks.items()}

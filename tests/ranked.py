"""Tiny models whose blocks have QK and VO ranks of their own, and dense models that must do the same."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from families import MODEL_TYPES, attention_part, tiny, tiny_batches
from slimformer.models import FAMILIES, describe
from slimformer.models.ranks import heads_of
from slimformer.rewrite.ranks import cut_ranks, rotary_rows
from slimformer.rewrite.sizes import keep_attributes_true, state_sizes

WIDTH = 8  # of a head of the tiny models
NONE = torch.empty(0, dtype=torch.long)
ALL = torch.arange(WIDTH)

# For every block: coordinates of queries and keys (rotary planes where there are such), coordinates of values.
# Two lists are one for each of two key/value heads.
SETTINGS: dict[str, list[tuple[list[Any], list[Any]]]] = {
    "narrow keys": [([1], [0, 2, 3, 4, 7]), ([0, 3], [1, 2, 3, 4, 5, 6]), ([2, 0, 3], [7, 6, 5, 4, 3, 2, 1])],
    "narrow values": [([0, 1, 2], [4, 5]), ([3, 0], [6]), ([0, 1, 2, 3], [1, 5, 3])],
    "nothing left": [([], [0, 1, 5]), ([1, 2], []), ([], [*range(8)])],
    "first without": [([0, 1], []), ([1, 2], [0, 1, 2, 3, 4, 5]), ([], [3])],
    "own for each": [([[0, 1], [2, 3]], [[0, 1, 2], [5, 6, 7]]), ([[2], [1]], [1, 4]), ([0, 3], [[0, 7], [7, 3]])],
}


def settings(model_type: str) -> list[str]:
    """The settings a family can have: only grouped queries have two key/value heads here."""
    return [name for name in SETTINGS if name != "own for each" or attention_part(model_type).kv_key]


# Every family once, and every setting, among grouped queries and among others.
DEALT = [
    *zip((t for t in MODEL_TYPES if attention_part(t).kv_key), itertools.cycle(reversed(SETTINGS))),
    *zip((t for t in MODEL_TYPES if not attention_part(t).kv_key), itertools.cycle(settings("bert"))),
]


def chosen(model_type: str, setting: str) -> list[tuple[Tensor, Tensor]]:
    """Rows of queries and keys, and rows of values, kept in every block."""
    return [(_qk(model_type, planes), torch.tensor(rows, dtype=torch.long)) for planes, rows in SETTINGS[setting]]


def _qk(model_type: str, planes: list[Any]) -> Tensor:
    if model_type == "qwen3":  # normed over all coordinates: all or nothing
        return ALL if planes else NONE
    if attention_part(model_type).rotary:
        each = planes if planes and isinstance(planes[0], list) else [planes]
        rows = torch.stack([rotary_rows(p, WIDTH) for p in each])
        return rows if len(rows) > 1 else rows[0]
    return torch.tensor(planes, dtype=torch.long)


def ranked(model: PreTrainedModel, setting: str) -> PreTrainedModel:
    """A copy cut by rank, whose config says so."""
    small, architecture = copy.deepcopy(model), describe(model)
    for i, (rows_qk, rows_v) in enumerate(chosen(model.config.model_type, setting)):
        cut_ranks(small, heads_of(architecture, i), rows_qk=rows_qk, rows_v=rows_v)
    keep_attributes_true(small)
    state_sizes(small, "ragged")
    return small


@torch.no_grad()
def zeroed(model: PreTrainedModel, setting: str) -> PreTrainedModel:
    """A dense copy in which the coordinates that would be cut are written as zeros and not read."""
    dense, architecture = copy.deepcopy(model), describe(model)
    for i, (rows_qk, rows_v) in enumerate(chosen(model.config.model_type, setting)):
        site = architecture.blocks[i].heads[0]
        kv_heads = site.units // site.group
        gone_qk, gone_v = (_gone(rows, kv_heads) for rows in (rows_qk, rows_v))
        for writer, gone in zip(site.writers, (gone_qk, gone_qk, gone_v), strict=True):
            mask = gone if writer.shared > 1 or site.group == 1 else gone.repeat_interleave(site.group, 0)
            at = writer.part * mask.numel() + mask.flatten().nonzero()[:, 0]
            layer = dense.get_submodule(writer.module)
            _outputs(layer)[at] = 0
            if layer.bias is not None:
                layer.bias[at] = 0
        columns = gone_v.repeat_interleave(site.group, 0).flatten().nonzero()[:, 0]
        _outputs(dense.get_submodule(site.reader))[:, columns] = 0
    return dense


def _gone(rows: Tensor, kv_heads: int) -> Tensor:
    gone = torch.ones(kv_heads, WIDTH, dtype=torch.bool)
    for mask, kept in zip(gone, rows if rows.ndim == 2 else [rows] * kv_heads, strict=True):
        mask[kept] = False
    return gone


def _outputs(layer: nn.Module) -> Tensor:
    """The weight as outputs × inputs, the one the layer has, not a copy."""
    return layer.weight.mT if isinstance(layer, Conv1D) else layer.weight


def padded(model: PreTrainedModel) -> dict[str, Tensor]:
    """Rows of several lengths: padded on the right for encoders, on the left for decoders; images as they are."""
    inputs = dict(tiny_batches(model, 1, rows=4)[0].inputs)
    if FAMILIES[model.config.model_type].causal:
        length = inputs["input_ids"].shape[1]
        inputs["attention_mask"] = (torch.arange(length) >= torch.tensor([[0], [3], [7], [1]])).long()
    return {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in inputs.items()}


@torch.no_grad()
def logits(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """Logits at real positions."""
    out = model(**inputs).logits
    return out[inputs["attention_mask"].bool()] if "attention_mask" in inputs else out


def furthest(left: Tensor, right: Tensor) -> float:
    """Largest difference, relative to the largest number."""
    return float((left - right).abs().max() / left.abs().max())


def tiny_ranked(model_type: str, setting: str, **sizes: Any) -> PreTrainedModel:
    return ranked(tiny(model_type, **sizes), setting)

"""From a plan to a smaller model. The model given is left untouched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments
from slimformer.decompose import Curve, Selection, select
from slimformer.decompose.bypass import bypass
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import weight_of
from slimformer.models.ranks import heads_of
from slimformer.plan import Edit, Plan
from slimformer.plan.curves import order_of
from slimformer.plan.ffn import joint_of
from slimformer.plan.profile import site_width
from slimformer.plan.ranks import attention_of
from slimformer.rewrite import surgery
from slimformer.rewrite.bypass import put_path
from slimformer.rewrite.ranks import reduce_ranks
from slimformer.rewrite.sizes import keep_attributes_true, state_sizes


@torch.no_grad()
def apply(
    plan: Plan,
    model: PreTrainedModel,
    curves: Mapping[str, Curve],
    moments: Callable[[int], BlockMoments],
    *,
    progress: Callable[[int], None] = lambda _block: None,
) -> PreTrainedModel:
    """A smaller copy of `model`: units selected, readers refitted by least squares, config telling the truth.

    `moments(i)` gives the moments of block i, which are read only when the block is due. Cost O(k² d) per site.
    """
    small = deepcopy(model)
    architecture = describe(model)
    for i in range(architecture.n_blocks):
        cut_block(small, model, architecture, i, plan, curves, moments)
        progress(i)
    keep_attributes_true(small, architecture)
    state_sizes(small, architecture, plan.format)
    return small


def cut_block(
    small: PreTrainedModel,
    model: PreTrainedModel,
    architecture: Architecture,
    i: int,
    plan: Plan,
    curves: Mapping[str, Curve],
    moments: Callable[[int], BlockMoments],
) -> None:
    """Cut block i of `small`, so far a copy of that of `model`, in place; the config is left to whoever calls."""
    edits = {edit.site: edit for edit in plan.edits}
    cut = [site for site in architecture.of_block(i) if edits[site.name].keep < site.units]
    by_rank = f"blocks.{i}.attn.vo" in edits
    block = moments(i) if cut or by_rank else None
    if block is not None and by_rank:
        cut_by_rank(
            small, architecture, i, edits, curves, block,
            ridge=plan.ridge, absorb_mean=plan.absorb_mean, metric=plan.metric,
        )  # fmt: skip
    for site in cut:
        assert block is not None
        W = weight_of(model.get_submodule(site.reader))
        edit = edits[site.name]
        order = order_of(curves, site.name, plan.sizes[site.name])
        if edit.rank:
            joint = joint_of(site, W, block, absorb_mean=plan.absorb_mean, metric=plan.metric)
            put_path(small, architecture, site, bypass(joint, order, edit.keep, edit.rank, ridge=plan.ridge))
            continue
        width = site_width(site, W, block.sites[site.name], absorb_mean=plan.absorb_mean)
        cut_site(small, site, edit, order, select(width, order, edit.keep, ridge=plan.ridge))


def cut_by_rank(
    model: PreTrainedModel,
    architecture: Architecture,
    i: int,
    edits: Mapping[str, Edit],
    curves: Mapping[str, Curve],
    block: BlockMoments,
    *,
    ridge: float,
    absorb_mean: bool,
    metric: str,
) -> None:
    """Cut the attention of block i to the ranks the edits say, in place. `architecture` is that of `model`."""
    W_o = weight_of(model.get_submodule(heads_of(architecture, i).reader))
    attention = attention_of(architecture, i, W_o, block, ridge=ridge, absorb_mean=absorb_mean, metric=metric)
    vo = edits[f"blocks.{i}.attn.vo"]
    values = attention.values(vo.keep) if vo.keep < vo.of else None
    qk = edits.get(f"blocks.{i}.attn.qk")
    scores = attention.scores(curves[qk.site].order, qk.keep) if qk is not None and qk.keep < qk.of else None
    reduce_ranks(model, architecture, i, scores=scores, values=values)


def cut_site(model: PreTrainedModel, site: Site, edit: Edit, order: tuple[int, ...], selection: Selection) -> None:
    """Carry out one edit in place: writers lose rows, the reader is refitted."""
    kept = sorted(order[: edit.keep])
    for name in dict.fromkeys(writer.module for writer in site.writers):
        surgery.keep_rows(model.get_submodule(name), writer_rows(site, name, kept))
    surgery.read(model.get_submodule(site.reader), selection)
    if site.kind == "attn.heads":
        keep_planes(model, site, kept)


def keep_planes(model: PreTrainedModel, site: Site, kept: list[int]) -> None:
    """Of rotary planes that every key/value head has its own of, those of the heads that stay."""
    attention: Any = model.get_submodule(site.writers[0].module.rpartition(".")[0])
    planes = getattr(attention, "planes", None)
    if planes and isinstance(planes[0], list):
        attention.planes = [planes[group] for group in sorted({unit // site.group for unit in kept})]


def writer_rows(site: Site, module: str, kept: list[int]) -> torch.Tensor:
    """Rows of a writer that belong to the kept units; a fused matrix has rows of several writers, part after part."""
    rows, start = [], 0
    for writer in site.writers:
        if writer.module == module:
            units = list(dict.fromkeys(unit // writer.shared for unit in kept))
            first = start + torch.tensor(units, dtype=torch.long)[:, None] * writer.rows
            rows.append((first + torch.arange(writer.rows)).flatten())
            start += (site.units // writer.shared) * writer.rows
    return torch.cat(rows)

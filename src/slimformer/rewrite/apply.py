"""From a plan to a smaller model. The model given is left untouched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments
from slimformer.decompose import Curve, Selection, select
from slimformer.decompose.bypass import bypass
from slimformer.models import Site, describe
from slimformer.models.architecture import weight_of
from slimformer.models.ranks import heads_of
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import Visit, forward
from slimformer.plan import Edit, Plan
from slimformer.plan.curves import order_of
from slimformer.plan.ffn import joint_of
from slimformer.plan.profile import site_width
from slimformer.plan.ranks import attention_of
from slimformer.rewrite import surgery
from slimformer.rewrite.bypass import put_path
from slimformer.rewrite.ranks import reduce_ranks
from slimformer.rewrite.sizes import keep_attributes_true, state_sizes


class Fitting(Protocol):
    """How readers are refitted: said by a plan, and by the settings of a cut."""

    @property
    def ridge(self) -> float: ...

    @property
    def absorb_mean(self) -> bool: ...

    @property
    def metric(self) -> str: ...


How = TypeVar("How", bound=Fitting, covariant=True)


@dataclass(frozen=True)
class Cut(Generic[How]):
    """What a cut is made from: a plan, or the settings of one; error curves; and the moments of every block, which are
    read only when it is due."""

    how: How
    curves: Mapping[str, Curve]
    moments: Callable[[int], BlockMoments]


@torch.no_grad()
def apply(
    plan: Plan,
    model: PreTrainedModel,
    curves: Mapping[str, Curve],
    moments: Callable[[int], BlockMoments],
    *,
    residence: Residence = IN_MEMORY,
    progress: Callable[[int], None] = lambda _block: None,
) -> PreTrainedModel:
    """A smaller copy of `model`: units selected, readers refitted by least squares, config telling the truth.

    A walk that was stopped goes on at the first block that is not finished ("apply"). Cost O(k² d) per site.
    """
    small, architecture = residence.copy(model), describe(model)
    home, cut = residence.of_copy, Cut(plan, curves, moments)
    for visit in forward(model, architecture, residence, first=len(residence.notes("apply"))):
        with home.block(visit.i):
            cut_block(Visit(small, architecture, visit.i, home), visit, cut)
            home.settle(visit.i)
        residence.finish("apply", None)
        progress(visit.i)
    keep_attributes_true(small, architecture)
    state_sizes(small, architecture, plan.format)
    return small


def cut_block(small: Visit, dense: Visit, cut: Cut[Plan]) -> None:
    """Cut a block of the small model, so far a copy of the dense one, in place; the config is left to whoever calls."""
    plan = cut.how
    edits = {edit.site: edit for edit in plan.edits}
    sites = [site for site in dense.sites if edits[site.name].keep < site.units]
    by_rank = f"blocks.{dense.i}.attn.vo" in edits
    block = cut.moments(dense.i) if sites or by_rank else None
    if block is not None and by_rank:
        cut_by_rank(small, edits, cut, block)
    for site in sites:
        assert block is not None
        W = weight_of(dense.model.get_submodule(site.reader))
        edit = edits[site.name]
        order = order_of(cut.curves, site.name, plan.sizes[site.name])
        if edit.rank:
            joint = joint_of(site, W, block, absorb_mean=plan.absorb_mean, metric=plan.metric)
            path = bypass(joint, order, edit.keep, edit.rank, ridge=plan.ridge)
            put_path(small.model, small.architecture, site, path)
            continue
        width = site_width(site, W, block.sites[site.name], absorb_mean=plan.absorb_mean)
        cut_site(small.model, site, edit, order, select(width, order, edit.keep, ridge=plan.ridge))


def cut_by_rank(visit: Visit, edits: Mapping[str, Edit], cut: Cut[Fitting], block: BlockMoments) -> None:
    """Cut the attention of a block to the ranks the edits say, in place. The architecture is that before the cut."""
    i, how = visit.i, cut.how
    W_o = weight_of(visit.model.get_submodule(heads_of(visit.architecture, i).reader))
    attention = attention_of(
        visit.architecture, i, W_o, block, ridge=how.ridge, absorb_mean=how.absorb_mean, metric=how.metric
    )
    vo = edits[f"blocks.{i}.attn.vo"]
    values = attention.values(vo.keep) if vo.keep < vo.of else None
    qk = edits.get(f"blocks.{i}.attn.qk")
    scores = attention.scores(cut.curves[qk.site].order, qk.keep) if qk is not None and qk.keep < qk.of else None
    reduce_ranks(visit.model, visit.architecture, i, scores=scores, values=values)


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

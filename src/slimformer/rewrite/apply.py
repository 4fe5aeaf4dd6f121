"""From a plan to a smaller model. The model given is left untouched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments
from slimformer.decompose import Curve, Selection, select
from slimformer.decompose.bypass import bypass
from slimformer.models import Site, describe
from slimformer.models.architecture import own_rows, weight_of
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import Visit, forward
from slimformer.plan import Edit, Plan
from slimformer.plan.curves import order_of
from slimformer.plan.ffn import joint_of
from slimformer.plan.fitting import Fitting
from slimformer.plan.profile import site_width
from slimformer.plan.ranks import attention_of
from slimformer.rewrite import surgery
from slimformer.rewrite.bypass import put_path
from slimformer.rewrite.ranks import reduce_ranks, stand_in
from slimformer.rewrite.sizes import keep_attributes_true, state_sizes

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
    keep_attributes_true(small)
    state_sizes(small, plan.format)
    return small


def cut_block(small: Visit, dense: Visit, cut: Cut[Plan]) -> None:
    """Cut a block of the small model, so far a copy of the dense one, in place; the config is left to whoever calls."""
    plan = cut.how
    edits = {edit.site: edit for edit in plan.edits}
    sites = [site for site in dense.sites if edits[site.name].keep < site.units]
    by_rank = [site for site in dense.sites if site.rank_name("vo") in edits]
    block = cut.moments(dense.i) if sites or by_rank else None
    for site in by_rank:
        assert block is not None
        cut_by_rank(small.model, site, edits, cut, block)
    for site in sites:
        assert block is not None
        W = weight_of(dense.model.get_submodule(site.reader))
        edit = edits[site.name]
        order = order_of(cut.curves, site.name, plan.sizes[site.name])
        if edit.rank:
            joint = joint_of(site, W, block, plan)
            path = bypass(joint, order, edit.keep, edit.rank, ridge=plan.ridge)
            put_path(small.model, site, path)
            continue
        width = site_width(site, W, block.sites[site.name], absorb_mean=plan.absorb_mean)
        cut_site(small.model, site, edit, order, select(width, order, edit.keep, ridge=plan.ridge))


def cut_by_rank(
    model: PreTrainedModel, heads: Site, edits: Mapping[str, Edit], cut: Cut[Fitting], block: BlockMoments
) -> None:
    """Cut an attention to the ranks the edits say, in place. `heads` are those before the cut."""
    attention = attention_of(heads, weight_of(model.get_submodule(heads.reader)), block, cut.how)
    vo = edits[heads.rank_name("vo")]
    values = attention.values(vo.keep) if vo.keep < vo.of else None
    qk = edits.get(heads.rank_name("qk"))
    scores = attention.scores(cut.curves[qk.site].order, qk.keep) if qk is not None and qk.keep < qk.of else None
    reduce_ranks(model, heads, scores=scores, values=values)


def cut_site(model: PreTrainedModel, site: Site, edit: Edit, order: tuple[int, ...], selection: Selection) -> None:
    """Carry out one edit in place: writers lose rows, the reader is refitted."""
    chosen = sorted(order[: edit.keep])
    stand_in(model, site)
    for name in dict.fromkeys(writer.module for writer in site.writers):
        surgery.keep_rows(model.get_submodule(name), writer_rows(site, name, chosen))
    surgery.read(model.get_submodule(site.reader), selection)
    if site.kind == "attn.heads":
        keep_planes(model, site, chosen)


def keep_planes(model: PreTrainedModel, site: Site, kept: list[int]) -> None:
    """Of rotary planes that every key/value head has its own of, those of the heads that stay."""
    attention: Any = model.get_submodule(site.module)
    planes = getattr(attention, "planes", None)
    if planes and isinstance(planes[0], list):
        attention.planes = [planes[group] for group in sorted({unit // site.group for unit in kept})]


def writer_rows(site: Site, module: str, chosen: list[int]) -> torch.Tensor:
    """Rows of a matrix that belong to the kept units; a fused one has rows of several writers."""
    rows = []
    for writer in site.writers:
        if writer.module == module:
            units = list(dict.fromkeys(unit // writer.shared for unit in chosen))
            rows.append(own_rows(site, writer)[units].flatten())
    return torch.cat(rows).sort().values

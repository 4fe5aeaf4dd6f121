"""Sensitivity probes: cut one site alone and see what that does to the outputs.

The states before every block are computed once, so a probe of block i runs only what comes after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments, starting_at, states_before_blocks
from slimformer.calibrate.text import Batch
from slimformer.decompose import Curve, select
from slimformer.errors import NotFinite
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import reads_windows, weight_of
from slimformer.models.outputs import harm
from slimformer.models.ranks import heads_of, rank_sites
from slimformer.plan import Edit
from slimformer.plan.profile import site_width
from slimformer.plan.sensitivity import Probe
from slimformer.plan.settings import CutSettings
from slimformer.rewrite.apply import cut_by_rank, cut_site
from slimformer.rewrite.sizes import keep_attributes_true

TOKENS = 1024  # real tokens of the select split a probe reads
LENGTH = 128  # of many short sequences rather than of few long ones
SEQUENCES = 64  # at least, where a sequence may have a single output
KNEE = 0.6  # share of the units a probe keeps, about


@torch.no_grad()
def probe(
    model: PreTrainedModel,
    moments: Callable[[int], BlockMoments],
    curves: Mapping[str, Curve],
    batches: Sequence[Batch],
    settings: CutSettings,
    *,
    progress: Progress = silent,
) -> dict[str, Probe]:
    """One probe for every site, on the first of `batches` (the select split).

    Cost: for every site half a forward pass, on average, over `TOKENS` tokens.
    """
    model.eval()
    architecture = describe(model)
    chosen = short_batches(batches, windows=reads_windows(model, architecture.family))
    rounds = [_Round(model, architecture, batch) for batch in chosen]
    probes: dict[str, Probe] = {}
    progress("probe", 0, architecture.n_blocks)
    ranks = [site for site in rank_sites(model, architecture) if site.name in curves]
    for i in range(architecture.n_blocks):
        of_block = moments(i)
        for site in (*architecture.of_block(i), *(site for site in ranks if site.block == i)):
            if site.fixed:
                continue
            curve = curves[site.name]
            keep = knee(curve, most=_most(architecture, site, of_block))
            with _cut_alone(model, architecture, site, of_block, curve, keep, settings):
                harms = [each.harm(model, architecture, i) for each in rounds]
            error = curve.held[curve.sizes.index(keep)]
            total = sum(count for _, count in harms)
            mean = sum(h * count for h, count in harms) / total
            if not math.isfinite(mean):
                raise NotFinite(
                    f"{site.name}: the outputs hold NaN or infinite values once it is cut; check the weights"
                )
            probes[site.name] = Probe(site.name, keep, error, mean)
        progress("probe", i + 1, architecture.n_blocks)
    return probes


def _most(architecture: Architecture, site: Site, moments: BlockMoments) -> int:
    """The largest size the fitted tokens can serve: a refit needs as many as there are coordinates."""
    heads = heads_of(architecture, site.block)
    fitted = moments.sites.get(site.name, moments.sites[heads.name])["fit"].count
    return fitted // site.unit if site.reader else site.units


def knee(curve: Curve, *, most: int) -> int:
    """The legal size nearest to `KNEE` of the units that is neither none nor all of them, nor more than `most`."""
    full = curve.sizes[-1]
    candidates = [size for size in curve.sizes[:-1] if 0 < size <= most] or [full]
    return min(candidates, key=lambda size: abs(size - KNEE * full))


def short_batches(batches: Sequence[Batch], *, windows: bool, tokens: int = TOKENS) -> list[Batch]:
    """So many real tokens, of the beginnings of many windows; of rows, which stay whole, `SEQUENCES` at least."""
    out: list[Batch] = []
    found = rows = 0
    for batch in batches:
        if found >= tokens and (windows or rows >= SEQUENCES):
            break
        out.append(_beginning(batch) if windows else batch)
        found += out[-1].tokens
        rows += len(next(iter(batch.inputs.values())))
    return out


def _beginning(batch: Batch) -> Batch:
    """The first `LENGTH` positions: windows have no padding before them."""
    inputs = {name: tensor[:, :LENGTH] for name, tensor in batch.inputs.items()}
    return Batch(inputs, None if batch.mask is None else batch.mask[:, :LENGTH])


class _Round:
    """One batch with what the dense model makes of it: the states before every block, and the outputs."""

    def __init__(self, model: PreTrainedModel, architecture: Architecture, batch: Batch) -> None:
        self.batch = batch.to(model.device)
        self.states = states_before_blocks(model, architecture, self.batch)
        self.dense = self._outputs(model, architecture, architecture.n_blocks)

    def harm(self, model: PreTrainedModel, architecture: Architecture, i: int) -> tuple[float, int]:
        """Mean harm of what was changed in block i, and over how many outputs."""
        return harm(self.dense, self._outputs(model, architecture, i), self.batch.mask)

    def _outputs(self, model: PreTrainedModel, architecture: Architecture, i: int) -> Any:
        plain = {} if architecture.family.image else {"use_cache": False}
        with starting_at(model, architecture, i, self.states[i]):
            return model(**self.batch.inputs, **plain)


@contextmanager
def _cut_alone(
    model: PreTrainedModel,
    architecture: Architecture,
    site: Site,
    moments: BlockMoments,
    curve: Curve,
    keep: int,
    settings: CutSettings,
) -> Iterator[None]:
    """The model with one site cut and refitted; put back afterwards."""
    blocks: Any = model.get_submodule(architecture.blocks)  # a list of modules
    original = blocks[site.block]
    try:
        blocks[site.block] = deepcopy(original)
        if site.kind in ("attn.qk", "attn.vo"):
            cut_by_rank(
                model, architecture, site.block, _one_rank(model, architecture, site, keep), {site.name: curve},
                moments, ridge=settings.ridge, absorb_mean=settings.absorb_mean, metric=settings.metric,
            )  # fmt: skip
        else:
            W = weight_of(model.get_submodule(site.reader))
            width = site_width(site, W, moments.sites[site.name], absorb_mean=settings.absorb_mean)
            edit = Edit(site.name, curve.method, keep, site.units, curve.groups[curve.sizes.index(keep)])
            cut_site(model, site, edit, curve.order, select(width, curve.order, keep, ridge=settings.ridge))
        keep_attributes_true(model, architecture)
        yield
    finally:
        blocks[site.block] = original


def _one_rank(model: PreTrainedModel, architecture: Architecture, site: Site, keep: int) -> dict[str, Edit]:
    """Edits that cut one rank of a block and leave the other whole."""
    ranks = [rank for rank in rank_sites(model, architecture) if rank.block == site.block]
    sizes = {rank.name: keep if rank.name == site.name else rank.units for rank in ranks}
    return {rank.name: Edit(rank.name, "probe", sizes[rank.name], rank.units, sizes[rank.name]) for rank in ranks}

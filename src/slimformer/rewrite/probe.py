"""Sensitivity probes: cut one site alone and see what that does to the outputs.

All probes are made in one forward walk. In block i the streams of its sites begin, each with one site cut; every later
block takes all streams begun so far. So the weights of a block are needed once, and a probe of block i costs only what
comes after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments
from slimformer.calibrate.text import Batch
from slimformer.decompose import Curve, select
from slimformer.errors import NotFinite
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import reads_windows, weight_of
from slimformer.models.outputs import harm
from slimformer.models.ranks import heads_of, rank_sites
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import Stream, Visit, ending_in, forward, plain_call, rehearse
from slimformer.plan import Edit
from slimformer.plan.profile import site_width
from slimformer.plan.sensitivity import Probe
from slimformer.rewrite.apply import Cut, Fitting, cut_by_rank, cut_site
from slimformer.rewrite.sizes import keep_attributes_true

TOKENS = 1024  # real tokens of the select split a probe reads
LENGTH = 128  # of many short sequences rather than of few long ones
SEQUENCES = 64  # at least, where a sequence may have a single output
KNEE = 0.6  # share of the units a probe keeps, about


@torch.no_grad()
def probe(
    model: PreTrainedModel,
    cut: Cut[Fitting],
    batches: Sequence[Batch],
    *,
    residence: Residence = IN_MEMORY,
    progress: Progress = silent,
) -> dict[str, Probe]:
    """One probe for every site that `cut` has a curve of, on the first of `batches` (the select split).

    A walk that was stopped goes on at the first block that is not finished ("probe"). Cost: for every site half a
    forward pass, on average, over `TOKENS` tokens; memory a state for every site.
    """
    model.eval()
    architecture = describe(model)
    chosen = [b.to(model.device) for b in short_batches(batches, windows=reads_windows(model, architecture.family))]
    dense = [stream.fork("dense") for stream in rehearse(model, architecture, chosen, "probe", residence)]
    known = residence.notes("probe")
    cuts = [Probe(**each) for note in known for each in note]
    streams = {each.site: [stream.fork(each.site) for stream in dense] for each in cuts}
    for stream in (*dense, *_all(streams)) if known else ():
        stream.state = residence.recall(stream.label(len(known)))
    progress("probe", len(known), architecture.n_blocks)
    for visit in forward(model, architecture, residence, first=len(known)):
        begun = _begin(visit, cut, dense)
        for stream in (*dense, *_all(streams)):
            visit.advance(stream)
        streams |= {each.site: own for each, own in begun}
        cuts += [each for each, _ in begun]
        residence.finish("probe", [asdict(each) for each, _ in begun])
        progress("probe", visit.i + 1, architecture.n_blocks)
    harms = _harms(model, architecture, chosen, dense, streams)
    return {each.site: Probe(each.site, each.keep, each.error, harms[each.site]) for each in cuts}


def _all(streams: Mapping[str, Sequence[Stream]]) -> Iterator[Stream]:
    return (stream for own in streams.values() for stream in own)


def _begin(visit: Visit, cut: Cut[Fitting], dense: Sequence[Stream]) -> list[tuple[Probe, list[Stream]]]:
    """For every site of a block its size and error, its harm still to be found, and streams that went through the block
    with that site cut."""
    found = []
    of_block = cut.moments(visit.i)
    ranks = [site for site in rank_sites(visit.model, visit.architecture) if site.name in cut.curves]
    for site in (*visit.sites, *(site for site in ranks if site.block == visit.i)):
        if site.fixed:
            continue
        curve = cut.curves[site.name]
        keep = knee(curve, most=_most(site, of_block))
        streams = [stream.fork(site.name) for stream in dense]
        with _cut_alone(visit, site, keep, cut, of_block):
            for stream in streams:
                visit.advance(stream)
        found.append((Probe(site.name, keep, curve.held[curve.sizes.index(keep)], 0.0), streams))
    return found


def _harms(
    model: PreTrainedModel, architecture: Architecture, batches: Sequence[Batch], dense: Sequence[Stream],
    streams: Mapping[str, Sequence[Stream]],
) -> dict[str, float]:  # fmt: skip
    """What every cut does to the outputs, from the states after the last block."""
    harms: dict[str, list[tuple[float, int]]] = {name: [] for name in streams}

    def outputs(batch: Batch, state: Tensor) -> Any:
        with ending_in(model, architecture, [(batch, state)]):
            return model(**batch.inputs, **plain_call(architecture))

    for n, batch in enumerate(batches):
        whole = outputs(batch, dense[n].state)
        for name, own in streams.items():
            harms[name].append(harm(whole, outputs(batch, own[n].state), batch.mask))
    means = {
        name: sum(h * count for h, count in each) / sum(count for _, count in each) for name, each in harms.items()
    }
    for name, mean in means.items():
        if not math.isfinite(mean):
            raise NotFinite(f"{name}: the outputs hold NaN or infinite values once it is cut; check the weights")
    return means


def _most(site: Site, moments: BlockMoments) -> int:
    """The largest size the fitted tokens can serve: a refit needs as many as there are coordinates."""
    fitted = next(iter(moments.sites.values()))["fit"].count  # all sites of a block see the same tokens
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


@contextmanager
def _cut_alone(visit: Visit, site: Site, keep: int, cut: Cut[Fitting], moments: BlockMoments) -> Iterator[None]:
    """The block with one site cut and refitted; put back afterwards."""
    model, architecture, how = visit.model, visit.architecture, cut.how
    original, curve = visit.block, cut.curves[site.name]
    try:
        model.set_submodule(visit.path, deepcopy(original))
        if site.kind in ("attn.qk", "attn.vo"):
            heads = heads_of(architecture, visit.i)
            cut_by_rank(model, heads, _one_rank(model, architecture, site, keep), cut, moments)
        else:
            W = weight_of(model.get_submodule(site.reader))
            width = site_width(site, W, moments.sites[site.name], absorb_mean=how.absorb_mean)
            edit = Edit(site.name, curve.method, keep, site.units, curve.groups[curve.sizes.index(keep)])
            cut_site(model, site, edit, curve.order, select(width, curve.order, keep, ridge=how.ridge))
        keep_attributes_true(model)
        yield
    finally:
        model.set_submodule(visit.path, original)


def _one_rank(model: PreTrainedModel, architecture: Architecture, site: Site, keep: int) -> dict[str, Edit]:
    """Edits that cut one rank of a block and leave the other whole."""
    ranks = [rank for rank in rank_sites(model, architecture) if rank.block == site.block]
    sizes = {rank.name: keep if rank.name == site.name else rank.units for rank in ranks}
    return {rank.name: Edit(rank.name, "probe", sizes[rank.name], rank.units, sizes[rank.name]) for rank in ranks}

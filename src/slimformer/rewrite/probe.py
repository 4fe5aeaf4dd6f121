"""Sensitivity probes: cut all sites of one kind a little and see what that does to the outputs.

A curve in nats is a quadratic form of the Fisher metric, and what it leaves out (a softmax, a gate, a norm after it)
differs between kinds of sites far more than between blocks. So there is one probe for each kind: neurons, heads, ranks
of scores, ranks of values. All sites of the kind are cut together, to about `KNEE` of their units, where harms are
small enough to add up; the harm h is shared out by their errors, h e_s / Σ e. A probe for every site costs
n/2 times as much in n blocks and tells no more (docs/methods/allocation.md).

All probes are made in one forward walk, one stream for each kind, so the weights of a block are needed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
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
from slimformer.models.walk import Ended, Stream, Visit, ending_in, forward, plain_call, rehearse
from slimformer.plan import Edit
from slimformer.plan.profile import site_width
from slimformer.plan.sensitivity import Probe
from slimformer.rewrite.apply import Cut, Fitting, cut_by_rank, cut_site
from slimformer.rewrite.sizes import keep_attributes_true

TOKENS = 1024  # real tokens of the select split a probe reads
LENGTH = 128  # of many short sequences rather than of few long ones
SEQUENCES = 64  # at least, where a sequence may have a single output
RANKS = ("attn.qk", "attn.vo")
KNEE = 0.8  # share of the units a probe keeps, about


@torch.no_grad()
def probe(
    model: PreTrainedModel,
    cut: Cut[Fitting],
    batches: Sequence[Batch],
    *,
    residence: Residence = IN_MEMORY,
    progress: Progress = silent,
) -> dict[str, Probe]:
    """A probe of every kind, as one of every site that `cut` has a curve of, on the first of `batches` (select).

    A walk that was stopped goes on at the first block that is not finished ("probe"). Cost: a forward pass over
    `TOKENS` tokens for each kind, and a refit of every site; memory a state for each kind.
    """
    model.eval()
    architecture = describe(model)
    chosen = [b.to(model.device) for b in short_batches(batches, windows=reads_windows(model, architecture.family))]
    dense = [stream.fork("dense") for stream in rehearse(model, architecture, chosen, "probe", residence)]
    ranks = [site for site in rank_sites(model, architecture) if site.name in cut.curves]
    sites = [site for site in (*architecture, *ranks) if not site.stays]
    streams = {kind: [stream.fork(kind) for stream in dense] for kind in dict.fromkeys(site.kind for site in sites)}
    known = residence.notes("probe")
    keep: dict[str, int] = {name: size for note in known for name, size in note.items()}
    everywhere = [*dense, *(stream for own in streams.values() for stream in own)]
    for stream in everywhere if known else ():
        stream.state = residence.recall(stream.label(len(known)))
    progress("probe", len(known), architecture.n_blocks)
    for visit in forward(model, architecture, residence, first=len(known)):
        sizes = _advance(visit, [site for site in sites if site.block == visit.i], cut, dense, streams)
        keep |= sizes
        residence.finish("probe", sizes)
        progress("probe", visit.i + 1, architecture.n_blocks)
    harms = _harms(model, architecture, chosen, dense, streams)
    return _shared_out(sites, cut.curves, keep, harms)


def _advance(
    visit: Visit, sites: Sequence[Site], cut: Cut[Fitting], dense: Sequence[Stream],
    streams: Mapping[str, Sequence[Stream]],
) -> dict[str, int]:  # fmt: skip
    """Let every stream through a block, each with the site of its kind cut; how much was kept of each."""
    moments = cut.moments(visit.i)
    keep = {site.name: knee(cut.curves[site.name], most=_most(site, moments)) for site in sites}
    for stream in dense:
        visit.advance(stream)
    for kind, own in streams.items():
        with _cut_alone(visit, [site for site in sites if site.kind == kind], keep, cut, moments):
            for stream in own:
                visit.advance(stream)
    return keep


def _shared_out(
    sites: Sequence[Site], curves: Mapping[str, Curve], keep: Mapping[str, int], harms: Mapping[str, float]
) -> dict[str, Probe]:
    """The harm of a kind as harms of its sites, in proportion to their errors."""
    errors = {site.name: curves[site.name].held[curves[site.name].sizes.index(keep[site.name])] for site in sites}
    total = {kind: sum(errors[site.name] for site in sites if site.kind == kind) for kind in harms}
    return {
        site.name: Probe(
            site.name, keep[site.name], errors[site.name],
            harms[site.kind] * errors[site.name] / total[site.kind] if total[site.kind] > 0 else 0.0,
        )
        for site in sites
    }  # fmt: skip


def _harms(
    model: PreTrainedModel, architecture: Architecture, batches: Sequence[Batch], dense: Sequence[Stream],
    streams: Mapping[str, Sequence[Stream]],
) -> dict[str, float]:  # fmt: skip
    """What the cuts of every kind do to the outputs, from the states after the last block."""
    harms: dict[str, list[tuple[float, int]]] = {kind: [] for kind in streams}

    def outputs(batch: Batch, state: Ended) -> Any:
        with ending_in(model, architecture, [(batch, state)]):
            return model(**batch.inputs, **plain_call(architecture))

    for n, batch in enumerate(batches):
        whole = outputs(batch, dense[n].end)
        for kind, own in streams.items():
            harms[kind].append(harm(whole, outputs(batch, own[n].end), batch.mask))
    means = {kind: sum(h * n for h, n in each) / sum(n for _, n in each) for kind, each in harms.items()}
    for kind, mean in means.items():
        if not math.isfinite(mean):
            raise NotFinite(f"{kind}: the outputs hold NaN or infinite values once it is cut; check the weights")
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
    count = rows = 0
    for batch in batches:
        if count >= tokens and (windows or rows >= SEQUENCES):
            break
        out.append(_beginning(batch) if windows else batch)
        count += out[-1].tokens
        rows += len(next(iter(batch.inputs.values())))
    return out


def _beginning(batch: Batch) -> Batch:
    """The first `LENGTH` positions: windows have no padding before them."""
    inputs = {name: tensor[:, :LENGTH] for name, tensor in batch.inputs.items()}
    return Batch(inputs, None if batch.mask is None else batch.mask[:, :LENGTH])


@contextmanager
def _cut_alone(
    visit: Visit, sites: Sequence[Site], keep: Mapping[str, int], cut: Cut[Fitting], moments: BlockMoments
) -> Iterator[None]:
    """The block with these sites cut and refitted; put back afterwards."""
    model, architecture, how = visit.model, visit.architecture, cut.how
    original = visit.block
    try:
        model.set_submodule(visit.path, deepcopy(original))
        for site in (site for site in sites if site.kind not in RANKS):
            W, curve, size = weight_of(model.get_submodule(site.reader)), cut.curves[site.name], keep[site.name]
            width = site_width(site, W, moments.sites[site.name], absorb_mean=how.absorb_mean)
            edit = Edit(site.name, curve.method, size, site.units, curve.groups[curve.sizes.index(size)])
            cut_site(model, site, edit, curve.order, select(width, curve.order, size, ridge=how.ridge))
        if any(site.kind in RANKS for site in sites):
            cut_by_rank(model, heads_of(architecture, visit.i), _ranks_kept(visit, sites, keep), cut, moments)
        keep_attributes_true(model)
        yield
    finally:
        model.set_submodule(visit.path, original)


def _ranks_kept(visit: Visit, sites: Sequence[Site], keep: Mapping[str, int]) -> dict[str, Edit]:
    """Edits of all ranks of a block; those of other kinds stay whole."""
    ranks = [rank for rank in rank_sites(visit.model, visit.architecture) if rank.block == visit.i]
    cut = {site.name for site in sites}
    sizes = {rank.name: keep[rank.name] if rank.name in cut else rank.units for rank in ranks}
    return {rank.name: Edit(rank.name, "probe", sizes[rank.name], rank.units, sizes[rank.name]) for rank in ranks}

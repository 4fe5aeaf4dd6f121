"""Calibration: one pass over the data gives moments and a metric, one factorisation per width gives error curves.

What is found is written to a folder, so that every later budget costs milliseconds and a cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments, collect
from slimformer.calibrate.distributed import lead_only, world
from slimformer.calibrate.gather import Data
from slimformer.calibrate.metric import shared_metric
from slimformer.calibrate.of_model import factorising, moments_of
from slimformer.calibrate.store import (
    Provenance,
    Statistics,
    begin,
    open_statistics,
    write_block,
    write_probes,
    write_weights,
)
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.atomic import revising
from slimformer.decompose import Curve
from slimformer.errors import CannotWrite, OutputExists, PlanDoesNotFit, UnknownMethod
from slimformer.files.seals import sealed_json
from slimformer.files.versions import versions
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import fingerprint, weight_of
from slimformer.models.load import Loaded
from slimformer.models.ranks import heads_of, rank_sites
from slimformer.models.residence import IN_MEMORY, InMemory, Residence
from slimformer.models.walk import forward
from slimformer.plan.curve_file import curves_from, plain_curves, read_curves
from slimformer.plan.curves import group_names
from slimformer.plan.ffn import joint_of, path_curves, path_names
from slimformer.plan.profile import site_curves
from slimformer.plan.ranks import attention_of
from slimformer.plan.settings import CutSettings
from slimformer.rewrite.apply import Cut
from slimformer.rewrite.bypass import is_linear_apart
from slimformer.rewrite.forbidden import activation_name
from slimformer.rewrite.probe import probe
from slimformer.run import Run

CURVES = 2  # what curves hold has changed so often; older ones are made anew
# Probes are made with these settings, whatever the plan will be made with: `calibrate` does not know that, and must
# find what `compress` finds.
PROBED = CutSettings(name="balanced", attention="best", ffn="best", metric="fisher")


def calibrated(run: Run, settings: CutSettings) -> Run:
    """The run with statistics and error curves; where the allocation goes by them, with metric and probes."""
    assert run.data is not None and run.folder is not None
    model, data, home, progress = run.dense, run.data, run.residence, run.progress
    require_together(run.loaded, data)
    metric = None
    if settings.allocation == "greedy" or settings.metric == "fisher":
        with run.timed("metric"):
            metric = shared_metric(model, data.splits["fit"], seed=data.seed, residence=home, progress=progress)
    with run.timed("calibrate"):
        statistics = _statistics(run, metric, joint=settings.ffn != "neurons")
    with run.timed("profile"):
        curves = profile(model, statistics, settings, residence=home, progress=progress)
    if settings.probed:
        with run.timed("probe"):
            keep_probes(model, statistics, data.splits["select"], residence=home, progress=progress)
    else:
        lead_only()
    return replace(run, statistics=statistics, curves=curves)


def calibrate(
    loaded: Loaded,
    data: Data,
    folder: Path,
    *,
    metric: Mapping[str, Tensor] | None = None,
    joint: bool = False,
    progress: Progress = silent,
) -> Statistics:
    """One pass over the fit and select splits; moments are written to `folder` block by block.

    `metric` (see `fisher.fisher_metric`) lets later stages count errors in nats at the outputs, `joint` moments of
    neurons with their input let them put linear paths beside neurons.
    """
    run = Run(loaded, loaded.model, data=data, folder=folder, progress=progress)
    return _statistics(run, metric, joint=joint)


def _statistics(run: Run, metric: Mapping[str, Tensor] | None, *, joint: bool) -> Statistics:
    """As `calibrate`, wherever the model lives; a walk that was stopped goes on."""
    assert run.data is not None and run.folder is not None
    architecture, folder, here = describe(run.dense), run.folder, world()
    home = InMemory((here.rank, here.size)) if here.size > 1 else run.residence
    energies = home.notes("calibrate")  # inverse energies of the stream after every block
    if not energies:
        mark = home.fingerprint(run.dense)
        begin(folder, replace(provenance_of(run.loaded, architecture, run.data, known=mark), joint=joint))
    splits = {split: run.splits[split] for split in ("fit", "select")}
    run.progress("calibrate", len(energies), architecture.n_blocks)
    for own in collect(run.dense, architecture, splits, metric, joint=joint, residence=home):
        block = here.total(own, architecture, list(splits))
        del own
        if here.leads or here.deals(block.block):  # the others keep what they will factorise
            write_block(folder, block)
        energies.append(block.error_weight)
        i = block.block
        del block  # before what is free is given back
        home.finish("calibrate", energies[-1])
        run.progress("calibrate", i + 1, architecture.n_blocks)
    write_weights(folder, {site.name: energies[site.block] for site in architecture})
    return open_statistics(folder)


def profile(
    model: PreTrainedModel, statistics: Statistics, settings: CutSettings, *, residence: Residence = IN_MEMORY,
    progress: Progress = silent,
) -> dict[str, Curve]:  # fmt: skip
    """Error curves of every site. Kept beside the statistics, so that the next budget costs nothing."""
    ways = "" if settings.attention == "heads" else "-ranks"
    ways += "-fisher" if settings.metric == "fisher" else ""
    ways += "-paths" if settings.ffn != "neurons" else ""
    key = f"{CURVES}-{settings.selector}-{settings.ridge!r}-{'bias' if settings.absorb_mean else 'nobias'}{ways}"
    cached = statistics.folder / f"curves-{key}.json"
    architecture = describe(model)
    known = read_curves(cached)
    ranks = rank_sites(model, architecture) if settings.attention != "heads" else ()
    paths = _path_sites(model, statistics, settings)
    wanted = architecture.by_name.keys() | {site.name for site in ranks}
    others = [*map(group_names, architecture), *map(path_names, paths)]
    if known.keys() == wanted.union(*others):
        return known
    here, phase = world(), f"profile-{key}"
    finished = residence.notes(phase)
    curves = {name: curve for note in finished for name, curve in curves_from(note).items()}
    progress("profile", len(finished), architecture.n_blocks)
    for visit in forward(model, architecture, residence, first=len(finished)):
        by_name: dict[str, Curve] = {}
        if here.deals(visit.i):
            moments = moments_of(statistics, architecture, visit.i)
            with factorising(statistics):
                by_name = block_curves(model, architecture, moments, settings, ranks, paths)
            del moments  # before what is free is given back
        curves |= by_name
        residence.finish(phase, plain_curves(by_name))
        progress("profile", visit.i + 1, architecture.n_blocks)
    if here.size > 1:
        curves = curves_from(here.told(plain_curves(curves)))
    keep_curves(cached, curves)
    return curves


def block_curves(
    model: PreTrainedModel,
    architecture: Architecture,
    block: BlockMoments,
    settings: CutSettings,
    ranks: Sequence[Site],
    paths: Sequence[Site],
) -> dict[str, Curve]:
    """Error curves of one block: of its sites, of those `ranks` and of those `paths` that are its own."""
    curves: dict[str, Curve] = {}
    i = block.block
    for site in architecture.blocks[i].sites:
        W = weight_of(model.get_submodule(site.reader))
        curves |= site_curves(
            site, block.read_through(site.name, W) if settings.metric == "fisher" else W, block.sites[site.name],
            selector=settings.selector, ridge=settings.ridge, absorb_mean=settings.absorb_mean,
        )  # fmt: skip
        if site in paths:
            joint = joint_of(site, W, block, settings)
            curves |= path_curves(joint, curves[site.name].order, ridge=settings.ridge)
    for site in ranks:
        if site.block == i:
            heads = heads_of(architecture, i)
            W_o = weight_of(model.get_submodule(heads.reader))
            curves[site.name] = attention_of(heads, W_o, block, settings).curve(site)
    return curves


def _path_sites(model: PreTrainedModel, statistics: Statistics, settings: CutSettings) -> list[Site]:
    """Feed-forward parts that may have a linear path; refuse where the recipe insists on one that cannot be had."""
    if settings.ffn == "neurons":
        return []
    if not statistics.provenance.joint:
        if settings.ffn == "best":  # neurons alone are then the best there is
            return []
        raise PlanDoesNotFit(
            f"the statistics in {str(statistics.folder)!r} hold no moments of neurons together with their input, which "
            f"the recipe {settings.name!r} needs; make them with `slimformer calibrate --paths`"
        )
    blocks = describe(model).blocks
    sites = [block.neurons[0] for block in blocks if len(block.neurons) == 1 and not block.neurons[0].beside]
    able = [site for site in sites if site.gated or is_linear_apart(activation_name(model))]
    if settings.ffn != "best" and len(able) < len(blocks):
        raise UnknownMethod(
            f"the recipe {settings.name!r} puts a linear path beside neurons, which this model has or cannot have "
            f"(its activation is {activation_name(model)!r}); use another recipe"
        )
    return able


def keep_curves(path: Path, curves: Mapping[str, Curve]) -> None:
    """In one step, so that an interrupt leaves no half of a file; where nothing can be written it only costs time."""
    text = sealed_json(plain_curves(curves))
    with suppress(CannotWrite, OutputExists), revising(path.parent, path.name) as file:
        file.write_text(text)


def keep_probes(
    model: PreTrainedModel, statistics: Statistics, batches: Sequence[Batch], *, residence: Residence = IN_MEMORY,
    progress: Progress = silent,
) -> None:  # fmt: skip
    """Probe, and write what was found beside the statistics, where every later plan reads it."""
    curves = profile(model, statistics, PROBED, residence=residence, progress=progress)
    lead_only()
    if residence.notes("probes written"):
        return
    cut = Cut(PROBED, curves, statistics.block)
    probes = probe(model, cut, batches, residence=residence, progress=progress)
    write_probes(statistics.folder, {name: asdict(each) for name, each in probes.items()})
    residence.finish("probes written", None)
    residence.forget("probe-")


def require_together(loaded: Loaded, data: Data) -> None:
    """Under torchrun, refuse processes that do not see the same model and data."""
    here = world()
    if here.size > 1:
        seen = {"model": fingerprint(loaded.model), "data": [data.hash, data.seed, data.seq_len, data.tokens]}
        here.require_same(seen)


def provenance_of(loaded: Loaded, architecture: Architecture, data: Data, *, known: str | None = None) -> Provenance:
    """What statistics say of their model and data; the fingerprint of a model that is not in memory must be `known`."""
    return Provenance(
        model=str(loaded.folder.resolve()) if loaded.folder and not loaded.name.startswith("demo:") else loaded.name,
        fingerprint=known or fingerprint(loaded.model), model_type=architecture.model_type,
        data=data.name, data_hash=data.hash, seed=data.seed, seq_len=data.seq_len, tokens=data.tokens,
        dtype=str(loaded.model.dtype).removeprefix("torch."), n_blocks=architecture.n_blocks, versions=versions(),
        reading=data.reading,
    )  # fmt: skip

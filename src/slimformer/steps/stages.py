"""The arrows of the pipeline, one function each, as library and shell use them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments, collect
from slimformer.calibrate.distributed import lead_only, world
from slimformer.calibrate.gather import Data, sequence_length
from slimformer.calibrate.of_model import factorising, moments_of
from slimformer.calibrate.of_model import require_same_model as require_statistics_of
from slimformer.calibrate.store import (
    Provenance,
    Statistics,
    begin,
    of_blocks,
    open_statistics,
    write_block,
    write_probes,
    write_weights,
)
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.atomic import revising
from slimformer.checkpoint.pack import packed, unpacked
from slimformer.checkpoint.save import save
from slimformer.decompose import Curve
from slimformer.errors import CannotWrite, OutputExists, PlanDoesNotFit, UnknownMethod
from slimformer.evaluate.report import Report
from slimformer.files.reading import checked
from slimformer.files.seals import sealed_json
from slimformer.files.versions import versions
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import fingerprint, weight_of
from slimformer.models.load import Loaded
from slimformer.models.ranks import heads_of, rank_sites
from slimformer.models.residence import InMemory
from slimformer.nn.long_context import require_every_key
from slimformer.plan import FORMATS, Budget, Plan, allocate
from slimformer.plan.budget import budget_of
from slimformer.plan.curve_file import curves_from, plain_curves, read_curves
from slimformer.plan.curves import group_names
from slimformer.plan.ffn import joint_of, path_curves, path_names
from slimformer.plan.plan import check_fits
from slimformer.plan.profile import blank_curves, site_curves
from slimformer.plan.ranks import attention_of
from slimformer.plan.recipe import Recipe, load_recipe
from slimformer.plan.sensitivity import Probe, sensitivities
from slimformer.report.card import model_card
from slimformer.report.page import html_page
from slimformer.rewrite.apply import Cut, apply
from slimformer.rewrite.bypass import is_linear_apart
from slimformer.rewrite.forbidden import activation_name
from slimformer.rewrite.probe import probe as probe_sites
from slimformer.rewrite.quantize import Quantized

RANKS = (".attn.qk", ".attn.vo")
ROUNDING = 1e-3  # by which a divergence of single precision may fall below zero
CURVES = 2  # what curves hold has changed so often; older ones are made anew


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
    architecture = describe(loaded.model)
    begin(folder, replace(provenance_of(loaded, architecture, data), joint=joint))
    splits = {split: data.splits[split] for split in ("fit", "select")}
    weights: dict[str, float] = {}
    progress("calibrate", 0, architecture.n_blocks)
    here = world()
    share = InMemory((here.rank, here.size))
    for own in collect(loaded.model, architecture, splits, metric, joint=joint, residence=share):
        block = here.total(own, architecture, list(splits))
        if here.leads or here.deals(block.block):  # the others keep what they will factorise
            write_block(folder, block)
        weights |= dict.fromkeys(block.sites, block.loudness)
        progress("calibrate", block.block + 1, architecture.n_blocks)
    write_weights(folder, weights)
    return open_statistics(folder)


def profile(
    model: PreTrainedModel, statistics: Statistics, recipe: Recipe, *, progress: Progress = silent
) -> dict[str, Curve]:
    """Error curves of every site. Kept beside the statistics, so that the next budget costs nothing."""
    require_widths(recipe)
    ways = "" if recipe.attention == "heads" else "-ranks"
    ways += "-fisher" if recipe.metric == "fisher" else ""
    ways += "-paths" if recipe.ffn != "neurons" else ""
    key = f"{CURVES}-{recipe.selector}-{recipe.ridge!r}-{'bias' if recipe.absorb_mean else 'nobias'}{ways}"
    cached = statistics.folder / f"curves-{key}.json"
    architecture = describe(model)
    known = read_curves(cached)
    ranks = rank_sites(model, architecture) if recipe.attention != "heads" else ()
    paths = _path_sites(model, statistics, recipe)
    wanted = architecture.by_name.keys() | {site.name for site in ranks}
    others = [*map(group_names, architecture), *map(path_names, paths)]
    if known.keys() == wanted.union(*others):
        return known
    curves: dict[str, Curve] = {}
    here = world()
    progress("profile", 0, architecture.n_blocks)
    for i in range(architecture.n_blocks):
        if here.deals(i):
            moments = moments_of(statistics, architecture, i)
            with factorising(statistics):
                curves |= block_curves(model, architecture, moments, recipe, ranks, paths)
        progress("profile", i + 1, architecture.n_blocks)
    if here.size > 1:
        curves = curves_from(here.told(plain_curves(curves)))
    keep_curves(cached, curves)
    return curves


def block_curves(
    model: PreTrainedModel,
    architecture: Architecture,
    block: BlockMoments,
    recipe: Recipe,
    ranks: Sequence[Site],
    paths: Sequence[Site],
) -> dict[str, Curve]:
    """Error curves of one block: of its sites, of those `ranks` and of those `paths` that are its own."""
    curves: dict[str, Curve] = {}
    i = block.block
    for site in architecture.of_block(i):
        W = weight_of(model.get_submodule(site.reader))
        curves |= site_curves(
            site, block.read_through(site.name, W) if recipe.metric == "fisher" else W, block.sites[site.name],
            selector=recipe.selector, ridge=recipe.ridge, absorb_mean=recipe.absorb_mean,
        )  # fmt: skip
        if site in paths:
            joint = joint_of(site, W, block, absorb_mean=recipe.absorb_mean, metric=recipe.metric)
            curves |= path_curves(joint, curves[site.name].order, ridge=recipe.ridge)
    for site in ranks:
        if site.block == i:
            W_o = weight_of(model.get_submodule(heads_of(architecture, i).reader))
            curves[site.name] = attention_of(
                architecture, i, W_o, block,
                ridge=recipe.ridge, absorb_mean=recipe.absorb_mean, metric=recipe.metric,
            ).curve(site)  # fmt: skip
    return curves


def require_widths(recipe: Recipe) -> None:
    """Refuse a recipe that drops whole blocks: moments of widths do not say which."""
    if recipe.depth != "none":
        raise UnknownMethod(
            f"the recipe {recipe.name!r} drops whole blocks, which takes the data; use `slimformer compress`"
        )


def _path_sites(model: PreTrainedModel, statistics: Statistics, recipe: Recipe) -> list[Site]:
    """Feed-forward parts that may have a linear path; refuse where the recipe insists on one that cannot be had."""
    if recipe.ffn == "neurons":
        return []
    if not statistics.provenance.joint:
        if recipe.ffn == "best":  # neurons alone are then the best there is
            return []
        raise PlanDoesNotFit(
            f"the statistics in {str(statistics.folder)!r} hold no moments of neurons together with their input, which "
            f"the recipe {recipe.name!r} needs; make them with `slimformer calibrate --paths`"
        )
    sites = [site for site in describe(model) if site.kind == "ffn.hidden" and not site.beside]
    found = [site for site in sites if site.gated or is_linear_apart(activation_name(model))]
    if recipe.ffn != "best" and len(found) < describe(model).n_blocks:
        raise UnknownMethod(
            f"the recipe {recipe.name!r} puts a linear path beside neurons, which this model has or cannot have "
            f"(its activation is {activation_name(model)!r}); use another recipe"
        )
    return found


def keep_curves(path: Path, curves: Mapping[str, Curve]) -> None:
    """In one step, so that an interrupt leaves no half of a file; where nothing can be written it only costs time."""
    text = sealed_json(plain_curves(curves))
    with suppress(CannotWrite, OutputExists), revising(path.parent, path.name) as file:
        file.write_text(text)


def make_plan(
    model: PreTrainedModel,
    statistics: Statistics,
    curves: Mapping[str, Curve],
    *,
    recipe: Recipe,
    macs: float | None = None,
    budget: Budget | None = None,
    format: str = "ragged",
) -> Plan:
    """Spread a budget over the sites: a fraction of the MACs, or another budget. Milliseconds."""
    require_same_model(model, statistics)
    return allocate(
        describe(model), curves, budget=budget or budget_of(macs=macs), seq_len=statistics.provenance.seq_len,
        recipe=recipe, weights=site_weights(statistics, curves, recipe), format=format,
        fingerprint=statistics.provenance.fingerprint, ranks=rank_sites(model, describe(model)),
    )  # fmt: skip


def site_weights(statistics: Statistics, curves: Mapping[str, Curve], recipe: Recipe) -> dict[str, float]:
    """What an error at each site counts for: as probed, or by the energy of the stream it is added to.

    Only the greedy allocation goes by probes; for the others none need be made.
    """
    probes = read_probes(statistics) if recipe.allocation == "greedy" else {}
    for name, probe in probes.items():
        if name in curves and probe.keep not in curves[name].sizes:
            raise PlanDoesNotFit(
                f"{statistics.folder / 'probes.json'}: {name} cannot keep {probe.keep} units; "
                "run `slimformer calibrate` again"
            )
    nats = recipe.metric == "fisher"
    unprobed = statistics.weights()  # read in any case: statistics that contradict themselves are not planned with
    return sensitivities(probes, curves, temper=recipe.temper, nats=nats) or unprobed


def read_probes(statistics: Statistics) -> dict[str, Probe]:
    """What the sensitivity probes found; nothing where none were made."""
    try:
        found = checked(dict[str, Probe], statistics.probes())
        for name, probe in found.items():
            if name != probe.site or not of_blocks(name, statistics.provenance.n_blocks):
                raise ValueError(f"{name[:80]} is no site")
            if probe.keep < 0 or probe.error < 0 or probe.harm < -ROUNDING:
                raise ValueError(
                    f"{name}: {probe.keep} units, error {probe.error:g} and harm {probe.harm:g} are no probe"
                )
        return found
    except ValueError as error:
        raise PlanDoesNotFit(
            f"{statistics.folder / 'probes.json'}: {error}; run `slimformer calibrate` again"
        ) from None


def carry_out(
    plan: Plan,
    model: PreTrainedModel,
    statistics: Statistics,
    curves: Mapping[str, Curve],
    *,
    progress: Progress = silent,
) -> PreTrainedModel:
    """Apply a plan with the statistics it was made from; the model given is left untouched."""
    architecture = describe(model)
    check_fits(plan, architecture, fingerprint(model))
    with factorising(statistics):
        return apply(
            plan,
            model,
            curves,
            lambda i: moments_of(statistics, architecture, i),
            progress=lambda i: progress("apply", i + 1, architecture.n_blocks),
        )


def even_plan(
    model: PreTrainedModel, *, budget: Budget, recipe: Recipe, format: str, seq_len: int | None = None
) -> Plan:
    """What would be kept if every block lost the same share: needs no data, so it is what --dry-run shows."""
    require_widths(recipe)
    if recipe.ffn in ("bypass", "linear"):
        raise PlanDoesNotFit(f"what the recipe {recipe.name!r} would keep cannot be told without data; use `compress`")
    require_every_key(model)
    architecture = describe(model)
    blank = {name: curve for site in architecture for name, curve in blank_curves(site, recipe.selector).items()}
    return allocate(
        architecture, blank, budget=budget, seq_len=sequence_length(model, architecture, seq_len),
        recipe=recipe.model_copy(update={"allocation": "uniform", "ffn": "neurons"}), weights={}, format=format,
    )  # fmt: skip


def replay(
    plan: Plan, model: PreTrainedModel, statistics: Statistics, *, progress: Progress = silent
) -> PreTrainedModel:
    """Carry out a plan that was written down earlier, if plan, model and statistics belong together."""
    require_same_model(model, statistics)
    architecture = describe(model)
    check_fits(plan, architecture, fingerprint(model))
    sequence_length(model, architecture, plan.seq_len)
    curves = profile(model, statistics, recipe_of(plan), progress=progress)
    return carry_out(plan, model, statistics, curves, progress=progress)


def recipe_of(plan: Plan) -> Recipe:
    """What a plan says of its recipe, as far as the smaller model depends on it."""
    methods = {edit.method for edit in plan.edits if not edit.site.endswith(RANKS)}
    if len(methods) != 1 or plan.format not in FORMATS or plan.seq_len < 1:
        raise PlanDoesNotFit(
            f"the plan has methods {', '.join(sorted(methods)) or 'none'}, format {plan.format!r} and sequence length "
            f"{plan.seq_len}; it needs one method, format {' or '.join(FORMATS)} and a positive length"
        )
    said: dict[str, Any] = {"selector": methods.pop(), "ridge": plan.ridge, "absorb_mean": plan.absorb_mean}
    said["metric"] = plan.metric
    said["attention"] = "best" if any(edit.site.endswith(RANKS) for edit in plan.edits) else "heads"
    said["ffn"] = "best" if any(edit.rank for edit in plan.edits) else "neurons"
    try:
        return Recipe.model_validate({"name": plan.recipe, "summary": "read off a plan", **said})
    except ValidationError as error:
        first = error.errors()[0]
        raise PlanDoesNotFit(f"the plan's {first['loc'][0]} cannot be used: {first['msg']}") from None


def save_result(
    loaded: Loaded,
    small: PreTrainedModel,
    plan: Plan,
    report: Report | None,
    folder: Path,
    *,
    force: bool,
    verify: bool = True,
    quantized: Quantized | None = None,
) -> Path:
    """A checkpoint in the precision of the original, or in fewer bits, with tokenizer, plan, report, page and card."""
    require_apart(folder, loaded.folder, loaded.name)
    stored = small if small.dtype == loaded.dtype else _in_precision(small, loaded.dtype)
    found = report.to_dict() if report else None
    card = model_card(report, folder=folder.name) if report else None
    page = html_page(found, folder=folder.name) if found else None
    save(
        unpacked(quantized, stored) if quantized else stored, folder, processor=loaded.processor,
        source_folder=loaded.companions, plan=plan, report=found, card=card, page=page, sample=None, force=force,
        verify=verify, packed=packed(quantized, stored) if quantized else None,
    )  # fmt: skip
    return folder


def _in_precision(model: PreTrainedModel, dtype: Any) -> PreTrainedModel:
    out: Any = copy.deepcopy(model)
    return out.to(dtype)


def require_apart(target: Path, *inputs: str | Path | None) -> None:
    """Refuse to write over what is being read: `force` must not destroy the dense model, its statistics or the data."""
    place = target.resolve()
    for given in inputs:
        if given and Path(given).exists() and Path(given).resolve().is_relative_to(place):
            what = "is" if Path(given).resolve() == place else f"holds {given}, which is"
            raise OutputExists(f"{target} {what} read to make the result, so it is not replaced; choose another place")


def require_same_model(model: PreTrainedModel, statistics: Statistics) -> None:
    """Refuse statistics of another model, and one with the same weights that runs over groups of keys."""
    require_every_key(model)
    require_statistics_of(model, statistics)


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


def keep_probes(
    model: PreTrainedModel, statistics: Statistics, batches: Sequence[Batch], *, progress: Progress = silent
) -> None:
    """Probe, and write what was found beside the statistics, where every later plan reads it.

    Always with the default recipe: `calibrate` does not know that of the plan, and must find what `compress` finds.
    """
    recipe = load_recipe("balanced")
    curves = profile(model, statistics, recipe, progress=progress)
    lead_only()
    found = probe_sites(model, Cut(recipe, curves, statistics.block), batches, progress=progress)
    write_probes(statistics.folder, {name: asdict(each) for name, each in found.items()})

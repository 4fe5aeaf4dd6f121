"""From one calibration to a model at any budget: plan, cut, and whatever the recipe does after the cut."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from transformers import PreTrainedModel

from slimformer.calibrate.gather import sequence_length
from slimformer.calibrate.of_model import factorising, moments_of
from slimformer.calibrate.of_model import require_same_model as require_statistics_of
from slimformer.calibrate.store import Statistics, of_blocks
from slimformer.decompose import Curve
from slimformer.errors import PlanDoesNotFit
from slimformer.evaluate.latency_table import latency_table
from slimformer.files.reading import checked
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.models.architecture import fingerprint
from slimformer.models.load import Loaded
from slimformer.models.ranks import rank_sites
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import forward
from slimformer.nn.replaced import require_uncut
from slimformer.plan import FORMATS, Budget, Plan, Terms, allocate
from slimformer.plan.plan import check_fits, recounted
from slimformer.plan.profile import blank_curves
from slimformer.plan.sensitivity import Probe, predicted_harm, sensitivities
from slimformer.plan.settings import CutSettings
from slimformer.rewrite.apply import apply
from slimformer.rewrite.surgery import round_weights
from slimformer.run import Run
from slimformer.steps.calibration import profile
from slimformer.steps.quantize import Quantize

RANKS = (".attn.qk", ".attn.vo")
ROUNDING = 1e-3  # by which a divergence of single precision may fall below zero


def make(run: Run, budget: Budget, settings: CutSettings) -> Run:
    """The run with its model at one budget, in the precision it is stored in. The one way from curves to a model."""
    plan = make_plan(run, budget, storable(run, settings))
    with run.timed("apply"):
        model = carry_out(
            plan, run.dense, run.known, run.curves, residence=run.residence, progress=run.progress
        )  # fmt: skip
    result = replace(run, model=model, plan=plan)
    for step in run.after:
        result = step.run(result)
    if result.quantized is None:
        _round(result)
    return result


def storable(run: Run, settings: CutSettings) -> CutSettings:
    """The settings with which what is cut can be stored as the steps after the cut want it.

    Tables in few bits ask for groups of one width in all layers, so heads and neurons are then kept in multiples of it,
    and neither ranks nor linear paths, which have any width, stand in for them.
    """
    group = next((step.one_group for step in run.after if isinstance(step, Quantize)), None)
    if group is None:
        return settings
    instead = {"attention": {"best": "heads"}, "ffn": {"best": "neurons"}}
    values = {name: ways.get(getattr(settings, name), getattr(settings, name)) for name, ways in instead.items()}
    multiple = math.lcm(settings.multiple_of, group)
    return settings.model_copy(update={**values, "multiple_of": multiple, "columns": group})


def _round(run: Run) -> None:
    """Let the weights be what they will be once they are stored. What the model shares with the dense one stays."""
    dtype, home = run.loaded.dtype, run.residence.of_copy
    if all(parameter.dtype == dtype for parameter in run.model.parameters()):
        return
    for visit in forward(run.model, describe(run.model), home):
        round_weights(visit.block, dtype)
        home.settle(visit.i)
    round_weights(run.model, dtype, but=run.dense.parameters())


def from_statistics(
    loaded: Loaded,
    statistics: Statistics,
    settings: CutSettings,
    *,
    format: str = "ragged",
    progress: Progress = silent,
) -> Run:
    """A run that starts where `calibrate` ended: any budget is one `make` away. Another model is refused."""
    require_same_model(loaded.model, statistics)
    curves = profile(loaded.model, statistics, settings, progress=progress)
    return Run(loaded, loaded.model, format, statistics=statistics, curves=curves, progress=progress)


def make_plan(run: Run, budget: Budget, settings: CutSettings) -> Plan:
    """Spread a budget over the sites. Milliseconds."""
    model, statistics = run.dense, run.known
    require_same_model(model, statistics, run.residence)
    architecture, weights = describe(model), site_weights(statistics, run.curves, settings)
    terms = Terms(budget, settings, run.seq_len, weights, run.format, rank_sites(model, architecture))
    plan = allocate(architecture, run.curves, terms, fingerprint=statistics.provenance.fingerprint)
    return foretold(plan, statistics, run.curves)


def foretold(plan: Plan, statistics: Statistics, curves: Mapping[str, Curve]) -> Plan:
    """The plan with the divergence its probes predict; none where nothing was probed."""
    probes = read_probes(statistics)
    return replace(plan, predicted_kl=predicted_harm(probes, curves, plan.sizes) if probes else None)


def priced(run: Run, budget: Budget) -> Budget:
    """The budget with its prices: a latency budget needs a table measured on this machine."""
    if budget.by != "latency":
        return budget
    return replace(budget, table=latency_table(run.dense, seq_len=run.seq_len, progress=run.progress))


def site_weights(statistics: Statistics, curves: Mapping[str, Curve], settings: CutSettings) -> dict[str, float]:
    """What an error at each site counts for: as probed; by the metric, which has it in nats; or by the energy of the
    stream it is added to.

    Only the greedy allocation goes by probes, if at all; for the others none need be made.
    """
    probes = read_probes(statistics) if settings.probed else {}
    for name, probe in probes.items():
        if name in curves and probe.keep not in curves[name].sizes:
            raise PlanDoesNotFit(
                f"{statistics.folder / 'probes.json'}: {name} cannot keep {probe.keep} units; "
                "run `slimformer calibrate` again"
            )
    unprobed = statistics.weights()  # read in any case: statistics that contradict themselves are not planned with
    if settings.allocation == "greedy" and not settings.probes and settings.metric == "fisher" and statistics.metric:
        return {}  # the errors of all sites, ranks of attention among them, are in nats as they are
    return sensitivities(probes, curves) or unprobed


def read_probes(statistics: Statistics) -> dict[str, Probe]:
    """What the sensitivity probes found; nothing where none were made."""
    try:
        probes = checked(dict[str, Probe], statistics.probes())
        for name, probe in probes.items():
            if name != probe.site or not of_blocks(name, statistics.provenance.n_blocks):
                raise ValueError(f"{name[:80]} is no site")
            if probe.keep < 0 or probe.error < 0 or probe.harm < -ROUNDING:
                raise ValueError(
                    f"{name}: {probe.keep} units, error {probe.error:g} and harm {probe.harm:g} are no probe"
                )
        return probes
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
    residence: Residence = IN_MEMORY,
    progress: Progress = silent,
) -> PreTrainedModel:
    """Apply a plan with the statistics it was made from; the model given is left untouched."""
    architecture = describe(model)
    check_fits(plan, architecture, residence.fingerprint(model))
    with factorising(statistics):
        return apply(
            plan,
            model,
            curves,
            lambda i: moments_of(statistics, architecture, i),
            residence=residence,
            progress=lambda i: progress("apply", i + 1, architecture.n_blocks),
        )


def even_plan(
    model: PreTrainedModel, *, budget: Budget, settings: CutSettings, format: str, seq_len: int | None = None
) -> Plan:
    """What would be kept if every block lost the same share: needs no data, so it is what --dry-run shows."""
    if settings.ffn in ("bypass", "linear"):
        raise PlanDoesNotFit(
            f"what the recipe {settings.name!r} would keep cannot be told without data; use `compress`"
        )
    require_uncut(model)
    architecture = describe(model)
    blank = {name: curve for site in architecture for name, curve in blank_curves(site, settings.selector).items()}
    even = settings.model_copy(update={"allocation": "uniform", "ffn": "neurons"})
    length = sequence_length(model, architecture, seq_len)
    return allocate(architecture, blank, Terms(budget, even, length, format=format))


def replay(
    plan: Plan, model: PreTrainedModel, statistics: Statistics, *, progress: Progress = silent
) -> tuple[PreTrainedModel, Plan]:
    """Carry out a plan that was written down earlier, if plan, model and statistics belong together; the smaller model,
    and the plan with what its sizes, which somebody may have edited, really keep and are expected to do."""
    require_same_model(model, statistics)
    architecture = describe(model)
    check_fits(plan, architecture, fingerprint(model))
    sequence_length(model, architecture, plan.seq_len)
    curves = profile(model, statistics, settings_of(plan), progress=progress)
    small = carry_out(plan, model, statistics, curves, progress=progress)
    return small, foretold(recounted(plan, architecture), statistics, curves)


def settings_of(plan: Plan) -> CutSettings:
    """What a plan says of its recipe, as far as the smaller model depends on it."""
    methods = {edit.method for edit in plan.edits if not edit.site.endswith(RANKS)}
    if len(methods) != 1 or plan.format not in FORMATS or plan.seq_len < 1:
        raise PlanDoesNotFit(
            f"the plan has methods {', '.join(sorted(methods)) or 'none'}, format {plan.format!r} and sequence length "
            f"{plan.seq_len}; it needs one method, format {' or '.join(FORMATS)} and a positive length"
        )
    values: dict[str, Any] = {"selector": methods.pop(), "ridge": plan.ridge, "absorb_mean": plan.absorb_mean}
    values["metric"] = plan.metric
    values["attention"] = "best" if any(edit.site.endswith(RANKS) for edit in plan.edits) else "heads"
    values["ffn"] = "best" if any(edit.rank for edit in plan.edits) else "neurons"
    try:
        return CutSettings.model_validate({"name": plan.recipe, **values})
    except ValidationError as error:
        first = error.errors()[0]
        raise PlanDoesNotFit(f"the plan's {first['loc'][0]} cannot be used: {first['msg']}") from None


def require_same_model(model: PreTrainedModel, statistics: Statistics, residence: Residence = IN_MEMORY) -> None:
    """Refuse statistics of another model, and one with the same weights that runs over groups of keys."""
    require_uncut(model)
    require_statistics_of(model, statistics, residence.fingerprint(model))

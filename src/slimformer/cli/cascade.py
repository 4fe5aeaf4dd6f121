"""`slimformer cascade`: two cuts of one model in one folder, and a threshold between them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out, python_line
from slimformer.cli.terminal import showing_progress
from slimformer.errors import BudgetOutOfReach, SlimformerError
from slimformer.plan.asked import fractions_of, require_format

if TYPE_CHECKING:
    from slimformer.models.opening import Opening

From = Annotated[
    str, typer.Argument(metavar="MODEL|STATS", help="a classifier or language model, or what `calibrate` made of one")
]
Budgets = Annotated[
    str,
    typer.Option("--macs", "--mu", metavar="SMALL,LARGE", help="block MACs the two cuts keep; 1 is the dense model"),
]
Tolerance = Annotated[
    float,
    typer.Option(
        min=0.0, metavar="LOSS", help="what the cascade may lose to the large cut: share of errors, or nats per token"
    ),
]
MeanMacs = Annotated[
    float | None, typer.Option(metavar="FRACTION", help="or: hand on as much as this mean of block MACs allows")
]
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="folder to write both models and the threshold to")]


@dataclass(frozen=True)
class Ready:
    """A calibrated run, with the data a cascade needs: to set the threshold on, and to report on."""

    run: Any
    splits: Mapping[str, Sequence[Any]]
    data: dict[str, Any]
    notes: list[str] = field(default_factory=list)


@opt.grouped
def cascade(
    source: From,
    out_folder: Folder,
    budgets: Budgets = "0.3,1",
    tolerance: Tolerance = 0.005,
    mean_macs: MeanMacs = None,
    data: opt.DataOption = None,
    reading: opt.Reading = opt.READING,
    recipe: opt.RecipeName = "balanced",
    format: opt.Format = "ragged",
    refine: opt.Refine = None,
    model: opt.Source = "",
    opening: opt.OpeningAsked = opt.AS_USUAL,
    dtype: opt.Dtype = "float32",
    verify: opt.Verify = True,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Two cuts of one model, routed input by input: the small one answers what it is sure of, the large one the rest.

    The small cut reads all inputs. Where the entropy of its answer is below a threshold, the answer stays; else the
    large cut reads the input again. Mean MACs: the small cut's, plus the large one's times the share handed on. The
    threshold is set on the select split, the table printed is of the report split.

    From a MODEL, one calibration on --data makes both cuts. From STATS none is needed (length and seed are its own):
    with the data STATS were made from, cuts are refined; other data only set the threshold, all but their report
    split. Better so for a classifier, which is surer of what it was trained on.

    Open the folder with slimformer.load_cascade(DIR); call the result with a batch, or its `score` with token ids.
    """
    from slimformer.recipes import fields_of

    both, name = _two_budgets(budgets), inputs.joined(data)
    fields_of(recipe)
    inputs.require_place(out_folder, force, source, model or None, *inputs.parts_of(name))
    calibrated = _require_inputs(source, model, name, format, opening, dtype)

    from slimformer.recipe import cut_settings, load_recipe, with_arguments
    from slimformer.steps.cascade import make_cascade

    chosen = with_arguments(load_recipe(recipe), {"refine": refine})
    with showing_progress(hidden=shown.hidden) as progress, tempfile.TemporaryDirectory() as scratch:
        if calibrated:
            ready = _from_statistics(Path(source), (model, opening), name, reading, (chosen, format, refine), progress)
        else:
            how_opened = inputs.with_precision(opening, dtype)
            start = _opened(source, how_opened, format, reading.seq_len, Path(scratch), progress)
            ready = _from_model(start, name, reading, chosen, both)
        how = {"budgets": both, "tolerance": tolerance, "mean_macs": mean_macs}
        routed = make_cascade(ready.run, cut_settings(chosen), ready.splits["select"], **how)  # type: ignore[arg-type]
        report = _report(routed, ready, recipe, format, progress)
        progress("save and verify", 0, 1)
        routed.save(out_folder, report=report, force=force, verify=verify)
        progress("save and verify", 1, 1)
    emit(report, shown, lambda: _show(report, out_folder))


def _require_inputs(source: str, moved: str, data: str, format: str, opening: opt.OpeningAsked, dtype: str) -> bool:
    """Are these statistics, not a model? What is not there or not known is refused before torch is imported."""
    require_format(format)
    inputs.require_precision(dtype)
    inputs.require_data(data)
    calibrated = (Path(source) / "stats.json").is_file()
    if calibrated:
        inputs.statistics_of(Path(source), moved, opening)
    else:
        inputs.require_model(source, opening)
    return calibrated


def _show(report: dict[str, Any], folder: Path) -> None:
    from slimformer.report.cascade import show_routing

    show_routing(report, out)
    line = python_line(f"import slimformer; cascade = slimformer.load_cascade({str(folder)!r})")
    typer.echo(f"\nsaved in {folder}; load it with:\n  {line}")


def _two_budgets(text: str) -> tuple[float, float]:
    """The two fractions in "0.3,1", the small one first."""
    fractions = sorted(fractions_of(text))
    if len(fractions) != 2 or fractions[0] == fractions[1]:
        raise BudgetOutOfReach(f"--macs {text!r} names no two cuts; give the small one and the large one, e.g. 0.3,1")
    return fractions[0], fractions[1]


def _opened(source: str, opening: Opening, format: str, seq_len: int | None, scratch: Path, progress: Any) -> Any:
    """The start of a run whose statistics live in `scratch`."""
    from slimformer.models.load import load_model
    from slimformer.run import Run

    loaded = load_model(source, opening)
    return Run(loaded, loaded.model, format, seq_len, folder=scratch / "stats", progress=progress)


def _from_model(start: Any, data: str, reading: opt.Reading, recipe: Any, budgets: tuple[float, float]) -> Ready:
    """Calibrate."""
    from slimformer.evaluate.answers import require_answers
    from slimformer.evaluate.assessment import data_provenance
    from slimformer.evaluate.data_notes import thin_data
    from slimformer.models import describe
    from slimformer.nn.replaced import require_uncut
    from slimformer.plan import Budget, check_budget
    from slimformer.recipe import cut_settings
    from slimformer.steps.calibration import calibrated

    model, settings, architecture = start.dense, cut_settings(recipe), describe(start.dense)
    require_uncut(model)
    require_answers(model)
    for fraction in budgets:  # before the long work
        check_budget(architecture, Budget(fraction), seq_len=start.seq_len, settings=settings, format=start.format)
    read = inputs.read_data(start.loaded, data, reading, broad=True)
    run = calibrated(replace(start, data=read, after=recipe.after_cut), settings)
    facts = data_provenance(architecture, read)
    return Ready(run, read.splits | read.own, facts, thin_data(architecture, read))


def _from_statistics(
    stats: Path, source: tuple[str, opt.OpeningAsked], data: str, reading: opt.Reading,
    how: tuple[Any, str, bool | None], progress: Any,
) -> Ready:  # fmt: skip
    """Use a calibration that is there; sequence length and seed are its own."""
    from slimformer.evaluate.answers import require_answers
    from slimformer.evaluate.assessment import data_provenance
    from slimformer.models import describe

    recipe, format, refine = how
    run, _ = inputs.started_from(stats, recipe, format, source, progress)
    provenance = run.known.provenance
    require_answers(run.dense)
    as_made = replace(reading, seq_len=provenance.seq_len, seed=provenance.seed)
    read = inputs.read_data(run.loaded, data, as_made, broad=bool(provenance.reading.get("broad")))
    facts = data_provenance(describe(run.dense), read)
    if read.hash == provenance.data_hash:
        return Ready(replace(run, data=read, after=recipe.after_cut), read.splits | read.own, facts)
    if refine:
        raise SlimformerError(
            f"--refine needs the data the statistics were made from ({provenance.data}); give them as --data"
        )
    apart, own = () if read.windows else ("certify",), read.splits | read.own  # the broad text is not the user's
    unseen = [batch for split in ("fit", "select", *apart) for batch in own[split]]
    splits = {"select": unseen, "report": read.splits["report"]}
    note = f"cuts are not refined: {read.name} is not what the statistics were made from ({provenance.data})"
    return Ready(run, splits, facts, [note])


def _report(routed: Any, ready: Ready, recipe: str, format: str, progress: Any) -> dict[str, Any]:
    """What the cascade does on the report split, and what it was made from."""
    from slimformer.evaluate.report import strict
    from slimformer.files.versions import versions
    from slimformer.report.cascade import FORMAT, routing_report

    measured = routing_report(
        routed.measured(ready.splits["report"], progress=progress), routed.cascade.macs, routed.cascade.threshold
    )
    report: dict[str, Any] = strict({
        "slimformer_cascade_report": FORMAT, "model": ready.run.loaded.name, "recipe": recipe, "format": format,
        "refined": bool(ready.run.after), "seq_len": routed.record.seq_len, **measured,
        "select": routed.record.select, "data": ready.data, "versions": versions(), "warnings": ready.notes,
    })  # fmt: skip
    return report

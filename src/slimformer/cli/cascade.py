"""The command that makes a cascade: two cuts of one model in one folder, and a threshold between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from slimformer.cli.frontier import emit, err, out, started_from
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    DataOption,
    Dtype,
    Force,
    Format,
    Quiet,
    RecipeName,
    Refine,
    Samples,
    Seed,
    SeqLen,
    Source,
    Tokens,
    Verify,
    opens_model,
)
from slimformer.cli.terminal import column_names, joined, progress_bars, python_line, with_precision
from slimformer.errors import BudgetOutOfReach, SlimformerError
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


@opens_model
def cascade(
    source: From,
    out_folder: Folder,
    budgets: Budgets = "0.3,1",
    tolerance: Tolerance = 0.005,
    mean_macs: MeanMacs = None,
    data: DataOption = None,
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    refine: Refine = None,
    model: Source = "",
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    dtype: Dtype = "float32",
    verify: Verify = True,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
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
    from slimformer.checkpoint.atomic import require_free
    from slimformer.models.load import load_model
    from slimformer.recipe import cut_settings, load_recipe, with_arguments
    from slimformer.run import Run
    from slimformer.steps.cascade import make_cascade
    from slimformer.steps.result import require_apart

    both, chosen, name = two_budgets(budgets), with_arguments(load_recipe(recipe), {"refine": refine}), joined(data)
    settings = cut_settings(chosen)
    require_apart(out_folder, source, model or None, name, *name.split(","))
    require_free(out_folder, force)
    reading = {"tokens": tokens, "samples": samples, "columns": column_names(columns)}
    with progress_bars(err, hidden=quiet or as_json) as progress, tempfile.TemporaryDirectory() as scratch:
        if (Path(source) / "stats.json").is_file():
            ready = _from_statistics(Path(source), (model, opening), name, reading, (chosen, format, refine), progress)
        else:
            reading |= {"seq_len": seq_len, "seed": seed}
            opened = load_model(source, with_precision(opening, dtype))
            start = Run(opened, opened.model, format, seq_len, folder=Path(scratch) / "stats", progress=progress)
            ready = _from_model(start, name, reading, chosen, both)
        made = make_cascade(
            ready.run, settings, ready.splits["select"], budgets=both, tolerance=tolerance, mean_macs=mean_macs
        )
        found = _report(made, ready, recipe, format, progress)
        progress("save and verify", 0, 1)
        made.save(out_folder, report=found, force=force, verify=verify)
        progress("save and verify", 1, 1)
    emit(found, as_json, quiet, lambda: _show(found, out_folder))


CASCADE: dict[Callable[..., None], str] = {
    cascade: "slimformer cascade ./my-classifier --macs 0.3,1 --data reviews.tsv --out cascade",
}


def _show(found: dict[str, Any], folder: Path) -> None:
    from slimformer.report.cascade import show_routing

    show_routing(found, out)
    line = python_line(f"import slimformer; cascade = slimformer.load_cascade({str(folder)!r})")
    typer.echo(f"\nsaved in {folder}; load it with:\n  {line}")


def two_budgets(text: str) -> tuple[float, float]:
    """The two fractions in "0.3,1", the small one first."""
    from slimformer.steps.frontier import budgets_of

    found = sorted(budgets_of(text))
    if len(found) != 2 or found[0] == found[1]:
        raise BudgetOutOfReach(f"--macs {text!r} names no two cuts; give the small one and the large one, e.g. 0.3,1")
    return found[0], found[1]


def _from_model(start: Any, data: str, reading: dict[str, Any], recipe: Any, budgets: tuple[float, float]) -> Ready:
    """Calibrate anew."""
    from slimformer.calibrate.gather import gather
    from slimformer.evaluate.answers import require_answers
    from slimformer.evaluate.assessment import data_provenance
    from slimformer.evaluate.data_notes import thin_data
    from slimformer.models import describe
    from slimformer.nn.long_context import require_every_key
    from slimformer.plan import Budget, check_budget
    from slimformer.recipe import cut_settings
    from slimformer.steps.calibration import calibrated

    model, settings, architecture = start.dense, cut_settings(recipe), describe(start.dense)
    require_every_key(model)
    require_answers(model)
    for fraction in budgets:  # before the long work
        check_budget(architecture, Budget(fraction), seq_len=start.seq_len, settings=settings, format=start.format)
    read = gather(data, model, start.loaded.processor, architecture, broad=True, **reading)
    run = calibrated(replace(start, data=read, after=recipe.after_cut), settings)
    told = data_provenance(architecture, read)
    return Ready(run, read.splits | read.own, told, thin_data(architecture, read))


def _from_statistics(
    stats: Path, source: tuple[str, Opening], data: str, reading: dict[str, Any], how: tuple[Any, str, bool | None],
    progress: Any,
) -> Ready:  # fmt: skip
    """Use a calibration that is there; sequence length and seed are its own."""
    from slimformer.calibrate.gather import gather
    from slimformer.calibrate.store import open_statistics
    from slimformer.evaluate.answers import require_answers
    from slimformer.evaluate.assessment import data_provenance
    from slimformer.models import describe
    from slimformer.recipe import cut_settings

    statistics, (recipe, format, refine) = open_statistics(stats), how
    made = statistics.provenance
    run = started_from(statistics, cut_settings(recipe), format, source, progress)
    require_answers(run.dense)
    architecture = describe(run.dense)
    read = gather(
        data, run.dense, run.loaded.processor, architecture, seq_len=made.seq_len, seed=made.seed,
        broad=bool(made.reading.get("broad")), **reading,
    )  # fmt: skip
    told = data_provenance(architecture, read)
    if read.hash == made.data_hash:
        return Ready(replace(run, data=read, after=recipe.after_cut), read.splits | read.own, told)
    if refine:
        raise SlimformerError(
            f"--refine needs the data the statistics were made from ({made.data}); give them as --data"
        )
    apart = () if read.windows else ("certify",)
    unseen = [batch for split in ("fit", "select", *apart) for batch in read.splits[split]]
    splits = {"select": unseen, "report": read.splits["report"]}
    note = f"cuts are not refined: {read.name} is not what the statistics were made from ({made.data})"
    return Ready(run, splits, told, [note])


def _report(made: Any, ready: Ready, recipe: str, format: str, progress: Any) -> dict[str, Any]:
    """What the cascade does on the report split, and what it was made from."""
    from slimformer.evaluate.report import strict
    from slimformer.files.versions import versions
    from slimformer.report.cascade import FORMAT, routing_report

    measured = routing_report(
        made.measured(ready.splits["report"], progress=progress), made.cascade.macs, made.cascade.threshold
    )
    found: dict[str, Any] = strict({
        "slimformer_cascade_report": FORMAT, "model": ready.run.loaded.name, "recipe": recipe, "format": format,
        "refined": bool(ready.run.after), "seq_len": made.record.seq_len, **measured,
        "select": made.record.select, "data": ready.data, "versions": versions(), "warnings": ready.notes,
    })  # fmt: skip
    return found

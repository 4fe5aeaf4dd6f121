"""The commands that live on one calibration: any budget in seconds, without the data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    DataOption,
    Force,
    Format,
    Latency,
    Macs,
    NoSeed,
    OutFolder,
    Params,
    Quiet,
    RecipeName,
    Samples,
    Source,
    Stats,
    Tokens,
    Verify,
    opens_model,
)
from slimformer.cli.terminal import budget as budget_from
from slimformer.cli.terminal import (
    column_names,
    joined,
    precision,
    progress_bars,
    python_line,
)
from slimformer.errors import SlimformerError
from slimformer.models.opening import Opening

err = Console(stderr=True)
out = Console()
Budgets = Annotated[
    str, typer.Option("--macs", "--mu", metavar="FRACTIONS", help="budgets, e.g. 0.9,0.7,0.5", show_default="all")
]


@opens_model
def cut(
    stats: Stats,
    out_folder: OutFolder,
    macs: Macs = None,
    params: Params = None,
    latency: Latency = None,
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    model: Source = "",
    opening: Opening = AS_USUAL,
    seed: NoSeed = 0,
    verify: Verify = True,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a model at any budget from one calibration, without the data: the same bits as compress --no-refine."""
    from slimformer.calibrate.store import open_statistics
    from slimformer.checkpoint.atomic import require_free
    from slimformer.evaluate.assessment import describe_result
    from slimformer.recipe import cut_settings
    from slimformer.steps.alternatives import alternatives
    from slimformer.steps.make import make, priced
    from slimformer.steps.result import Result, require_apart

    budget, settings, statistics = budget_from(macs, params, latency), cut_settings(recipe), open_statistics(stats)
    require_apart(out_folder, stats, model or statistics.provenance.model)
    require_free(out_folder, force)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        run = started_from(statistics, settings, format, (model, opening), progress)
        budget = priced(run, budget)
        made = make(run, budget, settings)
        report = describe_result(run.loaded, made.model, made.decided, statistics.provenance)
        report = replace(report, front=alternatives(run, budget, settings))
        progress("save and verify", 0, 1)
        Result(made.model, made.decided, report, run.loaded).save(out_folder, force=force, verify=verify)
        progress("save and verify", 1, 1)
    emit(report.to_dict(), as_json, quiet, lambda: saved_line(out_folder, report))


@opens_model
def frontier(
    stats: Stats,
    out_file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write the front as JSON")] = None,
    budgets: Budgets = "",
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    model: Source = "",
    opening: Opening = AS_USUAL,
    seed: NoSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """The whole front: for every budget what is kept, and the KL divergence the probes predict. Needs no data."""
    from slimformer.checkpoint.atomic import require_free_file, writing_file
    from slimformer.files.content import FRONT

    if out_file is not None:
        require_free_file(out_file, force, FRONT)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        *_, points = _front(stats, budgets, recipe, format, (model, opening), progress)
    rows = [point.to_json() for point in points]
    found = {"slimformer_front": 1, "recipe": recipe, "format": format, "points": rows}
    if out_file is not None:
        with writing_file(out_file, force=force, kind=FRONT) as file:
            file.write_text(json.dumps(found, indent=1))
    emit(found, as_json, quiet, lambda: out.print(front_table(rows)))


@opens_model
def sweep(
    stats: Stats,
    data: DataOption = None,
    budgets: Budgets = "0.9,0.8,0.7,0.6,0.5",
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    model: Source = "",
    opening: Opening = AS_USUAL,
    seed: NoSeed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make and measure the models of chosen budgets, one after the other; predicted beside measured divergence.

    Without --data they are measured on what was held out of the data STATS were made from; of those, no other part is
    read with --data either.
    """
    from slimformer.calibrate.recorded import read_again
    from slimformer.evaluate.assessment import held_out_batches, known_data
    from slimformer.report.console import measured_line
    from slimformer.steps import frontier as front

    if not data:
        require_readable_as_recorded(columns=columns, samples=samples)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        run, settings, points = _front(stats, budgets, recipe, format, (model, opening), progress)
        loaded, made = run.loaded, run.known.provenance
        if data:
            read = read_data(loaded, joined(data), columns, tokens, samples, made.seq_len, made.seed, "evaluation")
        else:
            read = read_again(
                known_data(made), loaded.model, loaded.processor, owner=str(stats), seq_len=made.seq_len, tokens=tokens
            )
        batches, notes = held_out_batches(made, read)
        rows = list(front.sweep(run, settings, points, batches))
    pairs = [(row["predicted_kl"], kl) for row in rows if (kl := measured_kl(row)) is not None and row["predicted_kl"]]
    tokens_read = sum(batch.tokens for batch in batches)
    facts = {"name": read.name, "hash": read.hash, "tokens": {"report": tokens_read}, "document": read.unit}
    found: dict[str, Any] = {
        "slimformer_sweep": 1, "points": rows, "rank_correlation": front.correlation(pairs), "notes": notes,
        "data": {**facts, "read_as": list(read.notes)},
    }  # fmt: skip
    for note in notes if not (quiet or as_json) else ():
        err.print(f"note: {note}", style="yellow")

    def tables() -> None:
        out.print(Text(measured_line(found["data"], rows[0]["metrics"] if rows else [])))
        out.print(front_table(rows))

    emit(found, as_json, quiet, tables)


FRONT: dict[Callable[..., None], str] = {
    cut: "slimformer cut stats --macs 0.6 --out smaller",
    frontier: "slimformer frontier stats --out front.json",
    sweep: "slimformer sweep stats --macs 0.8,0.6",
}


def _front(
    stats: Path, budgets: str, recipe: str, format: str, source: tuple[str, Opening], progress: Any
) -> tuple[Any, ...]:
    from slimformer.calibrate.store import open_statistics
    from slimformer.recipe import cut_settings
    from slimformer.steps import frontier as front

    settings, statistics, wanted = cut_settings(recipe), open_statistics(stats), front.budgets_of(budgets)
    run = started_from(statistics, settings, format, source, progress)
    return run, settings, front.frontier(run, settings, wanted)


def started_from(statistics: Any, settings: Any, format: str, source: tuple[str, Opening], progress: Any) -> Any:
    """A run from statistics, and from the model they are of, wherever it is now; another model is refused."""
    from slimformer.steps.make import from_statistics

    return from_statistics(loaded_for(statistics, *source), statistics, settings, format=format, progress=progress)


def require_readable_as_recorded(*, columns: str, samples: int | None) -> None:
    """Without --data the data are read as they were read at first; options that say otherwise need --data."""
    given = [flag for flag, value in (("--columns", columns), ("--samples", samples)) if value]
    if given:
        raise SlimformerError(
            f"{', '.join(given)}: how to read --data, and none are given; give --data, or leave it out"
        )


def measured_kl(row: dict[str, Any]) -> float | None:
    """The mean divergence that was measured, where there is one."""
    return next((m["small"] for m in row.get("metrics", []) if m["name"] == "kl"), None)


def front_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each budget."""
    table = Table(title=None)
    names = [metric["name"] for metric in rows[0].get("metrics", [])] if rows else []
    for name in ("budget", "MACs", "parameters", "predicted KL", *names):
        table.add_column(name, justify="right")
    for row in rows:
        predicted = "" if row["predicted_kl"] is None else f"{row['predicted_kl']:.4g}"
        measured = [f"{metric['small']:.4g}" for metric in row.get("metrics", [])]
        table.add_row(f"{row['budget']:g}", f"{row['macs']:.3f}", f"{row['params']:.3f}", predicted, *measured)
    return table


def loaded_for(statistics: Any, moved: str, opening: Opening) -> Any:
    """The model the statistics are of, in the precision they were made in: then every route gives the same bits."""
    from slimformer.models.load import load_model

    how = replace(opening, dtype=precision(statistics.provenance.dtype))
    return load_model(moved or statistics.provenance.model, how)


def read_both(
    model: str, opening: Opening, data: str, columns: str, tokens: int | None, samples: int | None,
    seq_len: int | None, seed: int, purpose: Any = "calibration", *, broad: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """A model, opened as asked for, and its data."""
    from slimformer.models.load import load_model

    loaded = load_model(model, opening)
    return loaded, read_data(loaded, data, columns, tokens, samples, seq_len, seed, purpose, broad=broad)


def read_data(
    loaded: Any, data: str, columns: str, tokens: int | None, samples: int | None, seq_len: int | None, seed: int,
    purpose: Any, *, broad: bool = False,
) -> Any:  # fmt: skip
    """Data for a model that is loaded already."""
    from slimformer.calibrate.gather import gather
    from slimformer.models import describe

    return gather(
        data, loaded.model, loaded.processor, describe(loaded.model),
        seq_len=seq_len, tokens=tokens, samples=samples, columns=column_names(columns), seed=seed, purpose=purpose,
        broad=broad,
    )  # fmt: skip


def emit(found: Any, as_json: bool, quiet: bool, tables: Callable[[], None]) -> None:
    """One JSON object, or tables, or nothing."""
    from slimformer.evaluate.report import strict

    if as_json:
        typer.echo(json.dumps(strict(found), allow_nan=False))
    elif not quiet:
        tables()


def saved_line(folder: Path, report: Any) -> None:
    """Where the result is, and the line that loads it."""
    from slimformer.models.registered import is_own

    place = str(folder)
    known = "import slimformer; " if is_own(report.model_type) or report.long_context else ""
    plain = f"{known}from transformers import {report.load_class} as M; model = M.from_pretrained({place!r})"
    ragged = f"import slimformer; model = slimformer.load({place!r})"
    typer.echo(f"\nsaved in {place}; load it with:\n  {python_line(plain if report.format == 'plain' else ragged)}")

"""`slimformer frontier`: every budget at once, planned and not made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slimformer.cli.inputs import started_from, statistics_of
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Budgets,
    Force,
    Format,
    NoSeed,
    OpeningAsked,
    Quiet,
    RecipeName,
    Source,
    Stats,
    opens_model,
)
from slimformer.cli.output import emit, front_table, out, show_data
from slimformer.cli.terminal import showing_progress


@opens_model
def frontier(
    stats: Stats,
    out_file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write the front as JSON")] = None,
    budgets: Budgets = "",
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    model: Source = "",
    opening: OpeningAsked = AS_USUAL,
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
    asked = front_asked(stats, budgets, recipe, format, (model, opening))
    with showing_progress(hidden=quiet or as_json) as progress:
        run, _, points = planned_front(stats, asked, format, (model, opening), progress)
    rows, made = [point.to_json() for point in points], run.known.provenance
    found = {"slimformer_front": 1, "recipe": recipe, "format": format, "data": made.data, "points": rows}
    if out_file is not None:
        with writing_file(out_file, force=force, kind=FRONT) as file:
            file.write_text(json.dumps(found, indent=1))

    def tables() -> None:
        show_data(made)
        out.print(front_table(rows))

    emit(found, as_json, quiet, tables)


def front_asked(
    stats: Path, budgets: str, recipe: str, format: str, source: tuple[str, OpeningAsked]
) -> tuple[Any, list[float]]:
    """The recipe and the budgets; what is not there or cannot be is refused before torch is imported."""
    from slimformer.plan.asked import fractions_of, require_format
    from slimformer.recipes import fields_of

    wanted = fractions_of(budgets)
    fields_of(recipe)
    require_format(format)
    statistics_of(stats, *source)
    return recipe, wanted


def planned_front(
    stats: Path, asked: tuple[Any, list[float]], format: str, source: tuple[str, OpeningAsked], progress: Any
) -> tuple[Any, ...]:
    """A run from the statistics, the settings, and a plan for every budget."""
    from slimformer.calibrate.store import open_statistics
    from slimformer.recipe import cut_settings
    from slimformer.steps import frontier as front

    settings = cut_settings(asked[0])
    run = started_from(open_statistics(stats), settings, format, source, progress)
    return run, settings, front.frontier(run, settings, asked[1])

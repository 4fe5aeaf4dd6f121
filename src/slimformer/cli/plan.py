"""`slimformer plan`: what every block keeps at a budget, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli.inputs import fraction_asked, started_from, statistics_of
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Force,
    Format,
    Latency,
    Macs,
    NoSeed,
    OpeningAsked,
    Params,
    Quiet,
    RecipeName,
    Source,
    Stats,
    opens_model,
)
from slimformer.cli.output import emit, out, show_data
from slimformer.cli.terminal import showing_progress


@opens_model
def plan(
    stats: Stats,
    macs: Macs = None,
    params: Params = None,
    latency: Latency = None,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE", help="where to write the plan")] = Path(
        "plan.json"
    ),
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    model: Source = "",
    opening: OpeningAsked = AS_USUAL,
    seed: NoSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Decide what every block keeps, so that a fraction of the block MACs, parameters or latency stays. Needs no
    data."""
    from slimformer.checkpoint.atomic import require_free_file, writing_file
    from slimformer.files.content import PLAN
    from slimformer.plan.asked import require_format
    from slimformer.recipes import fields_of

    asked = fraction_asked(macs, params, latency)
    fields_of(recipe)
    require_format(format)
    statistics_of(stats, model, opening)
    require_free_file(out_file, force, PLAN)

    from slimformer.calibrate.store import open_statistics
    from slimformer.models import describe
    from slimformer.plan.budget import budget_of
    from slimformer.recipe import cut_settings
    from slimformer.report.console import kept, plan_table
    from slimformer.steps.make import make_plan, priced

    statistics, settings = open_statistics(stats), cut_settings(recipe)
    with showing_progress(hidden=quiet or as_json) as progress:
        run = started_from(statistics, settings, format, (model, opening), progress)
        made = make_plan(run, priced(run, budget_of(**asked)), settings)
        with writing_file(out_file, force=force, kind=PLAN) as file:
            file.write_text(made.to_json())

    def tables() -> None:
        show_data(statistics.provenance)
        out.print(kept(plan_table(describe(run.dense), made)))

    emit(json.loads(made.to_json()), as_json, quiet, tables)

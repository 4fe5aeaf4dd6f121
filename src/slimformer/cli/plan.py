"""`slimformer plan`: what every block keeps at a budget, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli.inputs import curves_of, fraction_asked, loaded_for, priced_budget, statistics_of
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
from slimformer.cli.output import emit, out
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
    from slimformer.plan.recipe import load_recipe

    asked, chosen = fraction_asked(macs, params, latency), load_recipe(recipe)
    require_format(format)
    statistics_of(stats, model, opening)
    require_free_file(out_file, force, PLAN)

    from slimformer.calibrate.store import open_statistics
    from slimformer.models import describe
    from slimformer.report.console import kept, plan_table
    from slimformer.steps import stages

    statistics = open_statistics(stats)
    loaded = loaded_for(statistics, model, opening)
    dense = loaded.model
    with showing_progress(hidden=quiet or as_json) as progress:
        curves = curves_of(loaded, statistics, chosen, progress)
        budget = priced_budget(asked, dense, statistics.provenance.seq_len, progress)
        made = stages.make_plan(dense, statistics, curves, budget=budget, recipe=chosen, format=format)
        with writing_file(out_file, force=force, kind=PLAN) as file:
            file.write_text(made.to_json())
    emit(json.loads(made.to_json()), as_json, quiet, lambda: out.print(kept(plan_table(describe(dense), made))))

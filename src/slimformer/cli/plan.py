"""`slimformer plan`: what every block keeps at a budget, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, show_notes, show_plan
from slimformer.cli.terminal import showing_progress


@opt.grouped
def plan(
    stats: opt.Stats,
    macs: opt.Macs = None,
    params: opt.Params = None,
    latency: opt.Latency = None,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE", help="where to write the plan")] = Path(
        "plan.json"
    ),
    recipe: opt.RecipeName = "balanced",
    format: opt.Format = "ragged",
    model: opt.Source = "",
    opening: opt.OpeningAsked = opt.AS_USUAL,
    seed: opt.NoSeed = 0,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Decide what every block keeps, so that a fraction of the block MACs, parameters or latency stays. Needs no
    data."""
    from slimformer.checkpoint.atomic import require_free_file, writing_file
    from slimformer.files.content import PLAN

    source = (model, opening)
    fraction = inputs.fraction_asked(macs, params, latency)
    inputs.require_calibrated(stats, recipe, format, source)
    require_free_file(out_file, force, PLAN)

    from slimformer.evaluate.assessment import foreseen
    from slimformer.verbs.budgets import plan as decide

    with showing_progress(hidden=shown.hidden) as progress:
        statistics, loaded = inputs.statistics_and_model(stats, source)
        decided = decide(statistics, model=loaded, recipe=recipe, format=format, progress=progress, **fraction)
        with writing_file(out_file, force=force, kind=PLAN) as file:
            file.write_text(decided.to_json())

    def tables() -> None:
        show_plan(statistics.provenance, loaded, decided, foreseen(loaded, decided))
        show_notes(decided.notes, hidden=False)

    emit(json.loads(decided.to_json()), shown, tables)

"""`slimformer apply`: carry out a plan that is a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli.inputs import loaded_for, require_place, statistics_of
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Force,
    NoSeed,
    OpeningAsked,
    OutFolder,
    Quiet,
    Source,
    Stats,
    opens_model,
)
from slimformer.cli.output import emit, saved_line
from slimformer.cli.terminal import showing_progress


@opens_model
def apply(
    stats: Stats,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="the plan.json `slimformer plan` wrote")],
    out_folder: OutFolder,
    model: Source = "",
    opening: OpeningAsked = AS_USUAL,
    seed: NoSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Carry out a plan with the statistics it was made from, and save the smaller model."""
    require_place(out_folder, force, stats, plan_file, statistics_of(stats, model, opening))

    from slimformer.calibrate.store import open_statistics
    from slimformer.evaluate import assessment as assess
    from slimformer.models import describe
    from slimformer.plan import Plan
    from slimformer.plan.plan import recounted
    from slimformer.steps.make import replay
    from slimformer.steps.result import Result

    made, statistics = Plan.load(plan_file), open_statistics(stats)
    loaded = loaded_for(statistics, model, opening)
    with showing_progress(hidden=quiet or as_json) as progress:
        small = replay(made, loaded.model, statistics, progress=progress)
        made = recounted(made, describe(loaded.model))
        report = assess.describe_result(loaded, small, made, statistics.provenance)
        progress("save and verify", 0, 1)
        Result(small, made, report, loaded).save(out_folder, force=force)
        progress("save and verify", 1, 1)
    emit(report.to_dict(), as_json, quiet, lambda: saved_line(out_folder, report))

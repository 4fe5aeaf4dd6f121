"""`slimformer apply`: carry out a plan that is a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, save_result, show_cut
from slimformer.cli.terminal import showing_progress


@opt.grouped
def apply(
    stats: opt.Stats,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="the plan.json `slimformer plan` wrote")],
    out_folder: opt.OutFolder,
    model: opt.Source = "",
    opening: opt.OpeningAsked = opt.AS_USUAL,
    seed: opt.NoSeed = 0,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Carry out a plan with the statistics it was made from, and save the smaller model."""
    inputs.require_place(out_folder, force, stats, plan_file, inputs.statistics_of(stats, model, opening))

    from slimformer.calibrate.store import open_statistics
    from slimformer.evaluate.assessment import describe_result
    from slimformer.models import describe
    from slimformer.plan import Plan
    from slimformer.plan.plan import recounted
    from slimformer.steps.make import replay
    from slimformer.steps.result import Result

    decided, statistics = Plan.load(plan_file), open_statistics(stats)
    loaded = inputs.loaded_for(statistics, model, opening)
    with showing_progress(hidden=shown.hidden) as progress:
        small = replay(decided, loaded.model, statistics, progress=progress)
        decided = recounted(decided, describe(loaded.model))
        report = describe_result(loaded, small, decided, statistics.provenance)
        result = Result(small, decided, report, loaded)
        save_result(result, out_folder, force, progress)
    emit(report.to_dict(), shown, lambda: show_cut(statistics.provenance, describe(loaded.model), result, out_folder))

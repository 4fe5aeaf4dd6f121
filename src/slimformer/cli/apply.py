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

    from slimformer.plan import Plan
    from slimformer.verbs.budgets import apply as carry_out

    decided = Plan.load(plan_file)
    with showing_progress(hidden=shown.hidden) as progress:
        statistics, loaded = inputs.statistics_and_model(stats, (model, opening))
        result = carry_out(statistics, decided, model=loaded, progress=progress)
        save_result(result, out_folder, force, progress)
    emit(result.report.to_dict(), shown, lambda: show_cut(statistics.provenance, loaded, result, out_folder))

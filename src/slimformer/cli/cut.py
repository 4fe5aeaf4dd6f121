"""`slimformer cut`: a model at any budget from one calibration."""

from __future__ import annotations

from dataclasses import replace

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, save_result, show_cut
from slimformer.cli.terminal import showing_progress


@opt.grouped
def cut(
    stats: opt.Stats,
    out_folder: opt.OutFolder,
    macs: opt.Macs = None,
    params: opt.Params = None,
    latency: opt.Latency = None,
    recipe: opt.RecipeName = "balanced",
    format: opt.Format = "ragged",
    model: opt.Source = "",
    opening: opt.OpeningAsked = opt.AS_USUAL,
    seed: opt.NoSeed = 0,
    verify: opt.Verify = True,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Make a model at any budget from one calibration, without the data: the same bits as compress --no-refine."""
    source = (model, opening)
    asked = inputs.fraction_asked(macs, params, latency)
    inputs.require_place(out_folder, force, stats, inputs.require_calibrated(stats, recipe, format, source))

    from slimformer.evaluate.assessment import describe_result
    from slimformer.models import describe
    from slimformer.plan.budget import budget_of
    from slimformer.steps.alternatives import alternatives
    from slimformer.steps.make import make, priced
    from slimformer.steps.result import Result

    with showing_progress(hidden=shown.hidden) as progress:
        run, settings = inputs.started_from(stats, recipe, format, source, progress)
        budget = priced(run, budget_of(**asked))
        cut_run = make(run, budget, settings)
        report = describe_result(run.loaded, cut_run.model, cut_run.decided, run.known.provenance)
        report = replace(report, front=alternatives(run, budget, settings))
        result = Result(cut_run.model, cut_run.decided, report, run.loaded)
        save_result(result, out_folder, force, progress, verify=verify)
    dense = describe(run.dense)
    emit(report.to_dict(), shown, lambda: show_cut(run.known.provenance, dense, result, out_folder))

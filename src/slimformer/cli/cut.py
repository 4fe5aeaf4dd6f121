"""`slimformer cut`: a model at any budget from one calibration."""

from __future__ import annotations

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
    fraction = inputs.fraction_asked(macs, params, latency)
    inputs.require_place(out_folder, force, stats, inputs.require_calibrated(stats, recipe, format, source))

    from slimformer.verbs.budgets import cut as make_smaller

    with showing_progress(hidden=shown.hidden) as progress:
        statistics, loaded = inputs.statistics_and_model(stats, source)
        result = make_smaller(statistics, model=loaded, recipe=recipe, format=format, progress=progress, **fraction)
        save_result(result, out_folder, force, progress, verify=verify)
    emit(result.report.to_dict(), shown, lambda: show_cut(statistics.provenance, loaded, result, out_folder))

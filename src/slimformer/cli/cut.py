"""`slimformer cut`: a model at any budget from one calibration."""

from __future__ import annotations

from dataclasses import replace

from slimformer.cli.inputs import (
    fraction_asked,
    require_place,
    started_from,
    statistics_of,
)
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Force,
    Format,
    Latency,
    Macs,
    NoSeed,
    OpeningAsked,
    OutFolder,
    Params,
    Quiet,
    RecipeName,
    Source,
    Stats,
    Verify,
    opens_model,
)
from slimformer.cli.output import emit, saved_line
from slimformer.cli.terminal import showing_progress


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
    opening: OpeningAsked = AS_USUAL,
    seed: NoSeed = 0,
    verify: Verify = True,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a model at any budget from one calibration, without the data: the same bits as compress --no-refine."""
    from slimformer.plan.asked import require_format
    from slimformer.recipes import fields_of

    asked = fraction_asked(macs, params, latency)
    fields_of(recipe)
    require_format(format)
    require_place(out_folder, force, stats, statistics_of(stats, model, opening))

    from slimformer.calibrate.store import open_statistics
    from slimformer.evaluate.assessment import describe_result
    from slimformer.plan.budget import budget_of
    from slimformer.recipe import cut_settings
    from slimformer.steps.alternatives import alternatives
    from slimformer.steps.make import make, priced
    from slimformer.steps.result import Result

    statistics, settings = open_statistics(stats), cut_settings(recipe)
    with showing_progress(hidden=quiet or as_json) as progress:
        run = started_from(statistics, settings, format, (model, opening), progress)
        budget = priced(run, budget_of(**asked))
        made = make(run, budget, settings)
        report = describe_result(run.loaded, made.model, made.decided, statistics.provenance)
        report = replace(report, front=alternatives(run, budget, settings))
        progress("save and verify", 0, 1)
        Result(made.model, made.decided, report, run.loaded).save(out_folder, force=force, verify=verify)
        progress("save and verify", 1, 1)
    emit(report.to_dict(), as_json, quiet, lambda: saved_line(out_folder, report))

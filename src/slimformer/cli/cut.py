"""`slimformer cut`: a model at any budget from one calibration."""

from __future__ import annotations

from dataclasses import replace

from slimformer.cli.inputs import (
    curves_of,
    fraction_asked,
    loaded_for,
    priced_budget,
    require_place,
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
    from slimformer.plan.recipe import load_recipe

    asked, chosen = fraction_asked(macs, params, latency), load_recipe(recipe)
    require_format(format)
    require_place(out_folder, force, stats, statistics_of(stats, model, opening))

    from slimformer.calibrate.store import open_statistics
    from slimformer.evaluate import assessment as assess
    from slimformer.rewrite.surgery import round_weights
    from slimformer.steps import stages
    from slimformer.steps.alternatives import menu

    statistics = open_statistics(stats)
    loaded = loaded_for(statistics, model, opening)
    with showing_progress(hidden=quiet or as_json) as progress:
        curves = curves_of(loaded, statistics, chosen, progress)
        budget = priced_budget(asked, loaded.model, statistics.provenance.seq_len, progress)
        plan = stages.make_plan(loaded.model, statistics, curves, budget=budget, recipe=chosen, format=format)
        small = stages.carry_out(plan, loaded.model, statistics, curves, progress=progress)
        round_weights(small, loaded.dtype)
        offered = menu(loaded.model, statistics, curves, recipe=chosen, budget=budget, format=format)
        report = replace(assess.describe_result(loaded, small, plan, statistics.provenance), front=offered)
        progress("save and verify", 0, 1)
        stages.save_result(loaded, small, plan, report, out_folder, force=force, verify=verify)
        progress("save and verify", 1, 1)
    emit(report.to_dict(), as_json, quiet, lambda: saved_line(out_folder, report))

"""`slimformer frontier`: every budget at once, planned and not made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, front_table, out, show_data
from slimformer.cli.terminal import showing_progress


@opt.grouped
def frontier(
    stats: opt.Stats,
    out_file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write the front as JSON")] = None,
    budgets: opt.Budgets = "",
    recipe: opt.RecipeName = "balanced",
    format: opt.Format = "ragged",
    model: opt.Source = "",
    opening: opt.OpeningAsked = opt.AS_USUAL,
    seed: opt.NoSeed = 0,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """The whole front: for every budget what is kept, and the KL divergence the probes predict. Needs no data."""
    from slimformer.checkpoint.atomic import require_free_file, writing_file
    from slimformer.files.content import FRONT
    from slimformer.plan.asked import fractions_of

    if out_file is not None:
        require_free_file(out_file, force, FRONT)
    fractions, source = fractions_of(budgets), (model, opening)
    inputs.require_calibrated(stats, recipe, format, source)

    from slimformer.verbs.budgets import frontier as plan_all

    with showing_progress(hidden=shown.hidden) as progress:
        statistics, loaded = inputs.statistics_and_model(stats, source)
        points = plan_all(statistics, fractions, model=loaded, recipe=recipe, format=format, progress=progress)
    rows, provenance = [point.to_json() for point in points], statistics.provenance
    content = {"slimformer_front": 1, "recipe": recipe, "format": format, "data": provenance.data, "points": rows}
    if out_file is not None:
        with writing_file(out_file, force=force, kind=FRONT) as file:
            file.write_text(json.dumps(content, indent=1))

    def tables() -> None:
        show_data(provenance)
        out.print(front_table(rows))

    emit(content, shown, tables)

"""`slimformer sweep`: the models of several budgets, made and measured."""

from __future__ import annotations

from rich.text import Text

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, front_table, out, show_notes
from slimformer.cli.terminal import showing_progress


@opt.grouped
def sweep(
    stats: opt.Stats,
    data: opt.MeasuredData = None,
    budgets: opt.Budgets = "0.9,0.8,0.7,0.6,0.5",
    columns: opt.Columns = "",
    tokens: opt.Tokens = None,
    samples: opt.Samples = None,
    recipe: opt.RecipeName = "balanced",
    format: opt.Format = "ragged",
    model: opt.Source = "",
    opening: opt.OpeningAsked = opt.AS_USUAL,
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Make and measure the models of chosen budgets, one after the other; with predicted and measured divergence.

    Without --data they are measured on what was held out of the data STATS were made from; of those, no other part is
    read with --data either.
    """
    from slimformer.plan.asked import fractions_of

    if data:
        inputs.require_data(inputs.joined(data))
    else:
        inputs.require_readable_as_recorded(columns=columns, samples=samples)
    fractions, source = fractions_of(budgets), (model, opening)
    inputs.require_calibrated(stats, recipe, format, source)

    from slimformer.report.names import measured_line
    from slimformer.verbs.sweep import sweep as make_and_measure

    with showing_progress(hidden=shown.hidden) as progress:
        points = make_and_measure(
            stats, fractions, data=inputs.joined(data) if data else None, model=model or None, recipe=recipe,
            format=format, columns=opt.column_names(columns), tokens=tokens, samples=samples, progress=progress,
            **vars(opening.resolve()),
        )  # fmt: skip
    show_notes(points.notes, hidden=shown.hidden)

    def tables() -> None:
        out.print(Text(measured_line(points.data, points.points[0]["metrics"] if points.points else [])))
        out.print(front_table(points.points))
        out.print(Text("below a value: the 95 % interval of its difference to the dense model", style="dim"))

    emit(points.to_dict(), shown, tables)

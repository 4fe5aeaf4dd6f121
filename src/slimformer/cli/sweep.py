"""`slimformer sweep`: the models of several budgets, made and measured."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, front_table, out, show_notes
from slimformer.cli.terminal import showing_progress


@opt.grouped
def sweep(
    stats: opt.Stats,
    data: opt.DataOption = None,
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

    from slimformer.calibrate.recorded import read_again
    from slimformer.evaluate.assessment import held_out_batches, known_data
    from slimformer.report.names import measured_line
    from slimformer.steps import frontier as front

    with showing_progress(hidden=shown.hidden) as progress:
        run, settings = inputs.started_from(stats, recipe, format, source, progress)
        points = front.frontier(run, settings, fractions)
        loaded, provenance = run.loaded, run.known.provenance
        if data:
            reading = opt.Reading(columns, tokens, samples, provenance.seq_len, provenance.seed)
            read = inputs.read_data(loaded, inputs.joined(data), reading, purpose="evaluation")
        else:
            read = read_again(
                known_data(provenance),
                loaded.model,
                loaded.processor,
                owner=str(stats),
                seq_len=provenance.seq_len,
                tokens=tokens,
            )
        batches, notes = held_out_batches(provenance, read)
        rows = list(front.sweep(run, settings, points, batches))
    pairs = [(row["predicted_kl"], kl) for row in rows if (kl := measured_kl(row)) is not None and row["predicted_kl"]]
    tokens_read = sum(batch.tokens for batch in batches)
    facts = {"name": read.name, "hash": read.hash, "tokens": {"report": tokens_read}, "document": read.unit}
    content: dict[str, Any] = {
        "slimformer_sweep": 1, "points": rows, "rank_correlation": front.correlation(pairs), "notes": notes,
        "data": {**facts, "read_as": list(read.notes)},
    }  # fmt: skip
    show_notes(notes, hidden=shown.hidden)

    def tables() -> None:
        out.print(Text(measured_line(content["data"], rows[0]["metrics"] if rows else [])))
        out.print(front_table(rows))
        out.print(Text("below a value: the 95 % interval of its difference to the dense model", style="dim"))

    emit(content, shown, tables)


def measured_kl(row: dict[str, Any]) -> float | None:
    """The mean divergence that was measured, where there is one."""
    return next((m["small"] for m in row.get("metrics", []) if m["name"] == "kl"), None)

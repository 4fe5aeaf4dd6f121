"""`slimformer sweep`: the models of several budgets, made and measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

    from slimformer.evaluate.assessment import held_out_batches
    from slimformer.evaluate.data_notes import few_examples
    from slimformer.report.names import measured_line
    from slimformer.steps import frontier as front

    with showing_progress(hidden=shown.hidden) as progress:
        run, settings = inputs.started_from(stats, recipe, format, source, progress)
        points = front.frontier(run, settings, fractions)
        read = _read(run, stats, data, opt.Reading(columns, tokens, samples))
        batches, notes = held_out_batches(run.known.provenance, read)
        rows = list(front.sweep(run, settings, points, batches))
    pairs = [(row["predicted_kl"], kl) for row in rows if (kl := measured_kl(row)) is not None and row["predicted_kl"]]
    notes = [*notes, *few_examples(rows[0]["metrics"] if rows else [], read.unit)]
    content: dict[str, Any] = {
        "slimformer_sweep": 1, "points": rows, "rank_correlation": front.correlation(pairs), "notes": notes,
        "data": _facts(run, read, sum(batch.tokens for batch in batches)),
    }  # fmt: skip
    show_notes(notes, hidden=shown.hidden)

    def tables() -> None:
        out.print(Text(measured_line(content["data"], rows[0]["metrics"] if rows else [])))
        out.print(front_table(rows))
        out.print(Text("below a value: the 95 % interval of its difference to the dense model", style="dim"))

    emit(content, shown, tables)


def _read(run: Any, stats: Any, data: Any, reading: opt.Reading) -> Any:
    """What is measured on: the data that were named, or those that the statistics are of."""
    from slimformer.calibrate.recorded import read_again
    from slimformer.evaluate.assessment import known_data

    loaded, provenance = run.loaded, run.known.provenance
    length, seed = provenance.seq_len, provenance.seed
    if data:
        reading = replace(reading, seq_len=length, seed=seed)
        return inputs.read_data(loaded, inputs.joined(data), reading, purpose="evaluation")
    how = {"owner": str(stats), "seq_len": length, "tokens": reading.tokens}
    return read_again(known_data(provenance), loaded.model, loaded.processor, **how)


def _facts(run: Any, read: Any, tokens: int) -> dict[str, Any]:
    """What the table says of its data."""
    from slimformer.evaluate.assessment import is_held_out, known_data
    from slimformer.models import describe

    return {
        "name": read.name, "hash": read.hash, "tokens": {"report": tokens}, "document": read.unit,
        "unit": "images" if describe(run.dense).family.image else "tokens",
        "held_out": is_held_out(known_data(run.known.provenance), read), "read_as": list(read.notes),
    }  # fmt: skip


def measured_kl(row: dict[str, Any]) -> float | None:
    """The mean divergence that was measured, where there is one."""
    return next((m["small"] for m in row.get("metrics", []) if m["name"] == "kl"), None)

"""`slimformer sweep`: the models of several budgets, made and measured."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from slimformer.cli.frontier import front_asked, planned_front
from slimformer.cli.inputs import joined, read_data, require_data, require_readable_as_recorded
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Budgets,
    Columns,
    DataOption,
    Format,
    NoSeed,
    OpeningAsked,
    Quiet,
    RecipeName,
    Samples,
    Source,
    Stats,
    Tokens,
    opens_model,
)
from slimformer.cli.output import emit, front_table, out, show_notes
from slimformer.cli.terminal import showing_progress


@opens_model
def sweep(
    stats: Stats,
    data: DataOption = None,
    budgets: Budgets = "0.9,0.8,0.7,0.6,0.5",
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    model: Source = "",
    opening: OpeningAsked = AS_USUAL,
    seed: NoSeed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make and measure the models of chosen budgets, one after the other; predicted beside measured divergence.

    Without --data they are measured on what was held out of the data STATS were made from; of those, no other part is
    read with --data either.
    """
    if data:
        require_data(joined(data))
    else:
        require_readable_as_recorded(columns=columns, samples=samples)
    asked = front_asked(stats, budgets, recipe, format, (model, opening))

    from slimformer.calibrate.recorded import read_again
    from slimformer.evaluate.assessment import held_out_batches, known_data
    from slimformer.report.names import measured_line
    from slimformer.steps import frontier as front

    with showing_progress(hidden=quiet or as_json) as progress:
        run, settings, points = planned_front(stats, asked, format, (model, opening), progress)
        loaded, made = run.loaded, run.known.provenance
        if data:
            read = read_data(loaded, joined(data), columns, tokens, samples, made.seq_len, made.seed, "evaluation")
        else:
            read = read_again(
                known_data(made), loaded.model, loaded.processor, owner=str(stats), seq_len=made.seq_len, tokens=tokens
            )
        batches, notes = held_out_batches(made, read)
        rows = list(front.sweep(run, settings, points, batches))
    pairs = [(row["predicted_kl"], kl) for row in rows if (kl := measured_kl(row)) is not None and row["predicted_kl"]]
    tokens_read = sum(batch.tokens for batch in batches)
    facts = {"name": read.name, "hash": read.hash, "tokens": {"report": tokens_read}, "document": read.unit}
    found: dict[str, Any] = {
        "slimformer_sweep": 1, "points": rows, "rank_correlation": front.correlation(pairs), "notes": notes,
        "data": {**facts, "read_as": list(read.notes)},
    }  # fmt: skip
    show_notes(notes, hidden=quiet or as_json)

    def tables() -> None:
        out.print(Text(measured_line(found["data"], rows[0]["metrics"] if rows else [])))
        out.print(front_table(rows))
        out.print(Text("below a value: the 95 % interval of its difference to the dense model", style="dim"))

    emit(found, as_json, quiet, tables)


def measured_kl(row: dict[str, Any]) -> float | None:
    """The mean divergence that was measured, where there is one."""
    return next((m["small"] for m in row.get("metrics", []) if m["name"] == "kl"), None)

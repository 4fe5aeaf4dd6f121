"""`slimformer attention`: how many keys attention needs, and what `inspect` shares with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError, TooFewTokens

TOKENS = 8192  # to look at activations on


@opt.grouped
def attention(
    model: opt.Model,
    data: opt.DataOption = None,
    lengths: opt.Lengths = "",
    sequences: opt.Sequences = 8,
    share: Annotated[float, typer.Option(metavar="FRACTION", help="of the energy of attention to keep")] = 0.95,
    columns: opt.Columns = "",
    seed: opt.Seed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """How many keys attention needs, layer by layer and head by head, and whether the same ones serve every text.

    A fixed projection of the keys (Linformer) can be given to a trained model without training only if they do.
    """
    if not 0 < share < 1:
        raise SlimformerError(f"--share {share}: a fraction between 0 and 1, e.g. 0.95")
    if sequences < 2:
        raise SlimformerError("--sequences 1: directions are fitted on a half of the texts and tried on the others")
    name = inputs.joined(data)
    asked = lengths_of(lengths, [name])
    inputs.require_inputs(model, name, opening)

    from slimformer.calibrate.gather import sequence_length
    from slimformer.inspect.rows import row_spaces
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.models.sample_inputs import require_one_stack
    from slimformer.report.names import source_names
    from slimformer.report.rows import rows_report, show_rows

    loaded = load_model(model, opening.resolve())
    architecture = describe(loaded.model)
    if architecture.family.image:
        raise SlimformerError("this looks along texts; for the attention of image models see slimformer inspect")
    require_one_stack(loaded.model.config, "this view of attention")
    read = reader(loaded, columns, seed)
    length = sequence_length(loaded.model, architecture, None)
    rows = attention_rows(read, [name], asked, length, sequences, TOKENS)[name]
    with showing_progress(hidden=shown.hidden) as progress:
        by_length = [
            rows_report(
                row_spaces(loaded.model, architecture, batches, share=share, seed=seed, progress=progress), share
            )
            for batches in rows.values()
        ]
    report = {"model": loaded.name, "data": name, "share": share, "sequences": sequences, "lengths": by_length}

    def tables() -> None:
        for each in by_length:
            show_rows(each, out, data=source_names(name), sequences=sequences)

    emit(report, shown, tables)


def lengths_of(text: str, names: list[str]) -> list[int]:
    """The lengths in `64,128`; without data there is no attention to look at."""
    if text and not names:
        raise SlimformerError("--lengths are those of attention on data; give --data")
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise SlimformerError(f"--lengths {text!r} are not whole numbers; give e.g. 64,128") from None
    if any(n < 4 for n in numbers):
        raise SlimformerError(f"--lengths {text!r}: attention over fewer than 4 tokens has no useful spectrum")
    return sorted(set(numbers))


def reader(loaded: Any, columns: str, seed: int) -> Callable[[str, int, int], Any]:
    """What reads data for a model: their name, the length of sequences, how many tokens."""
    return lambda name, length, tokens: inputs.read_data(loaded, name, opt.Reading(columns, tokens, None, length, seed))


def attention_rows(
    read: Callable[[str, int, int], Any], names: list[str], asked: list[int], length: int, sequences: int, tokens: int
) -> dict[str, dict[int, Any]]:
    """For every data set sequences of every length asked for; else of the longest that all of them have, by halving."""
    from slimformer.inspect.attention import full_rows

    def rows(name: str, n: int) -> Any:
        splits = read(name, n, max(tokens, 4 * n * sequences)).splits.values()
        return full_rows([batch for part in splits for batch in part], n, sequences)

    if asked:
        return {name: {n: rows(name, n) for n in asked} for name in names}
    while True:
        try:
            return {name: {length: rows(name, length)} for name in names}
        except TooFewTokens:
            if length < 8:
                raise
            length //= 2

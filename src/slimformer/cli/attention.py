"""`slimformer attention`: how many keys attention needs, and what `inspect` shares with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from slimformer.cli.inputs import column_names, joined, require_data, require_model
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    DataOption,
    Lengths,
    Model,
    OpeningAsked,
    Quiet,
    Seed,
    Sequences,
    opens_model,
)
from slimformer.cli.output import emit, out
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError, TooFewTokens

TOKENS = 8192  # to look at activations on


@opens_model
def attention(
    model: Model,
    data: DataOption = None,
    lengths: Lengths = "",
    sequences: Sequences = 8,
    share: Annotated[float, typer.Option(metavar="FRACTION", help="of the energy of attention to keep")] = 0.95,
    columns: Columns = "",
    seed: Seed = 0,
    opening: OpeningAsked = AS_USUAL,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """How many keys attention needs, layer by layer and head by head, and whether the same ones serve every text.

    A fixed projection of the keys (Linformer) can be given to a trained model without training only if they do.
    """
    if not 0 < share < 1:
        raise SlimformerError(f"--share {share}: a fraction between 0 and 1, e.g. 0.95")
    if sequences < 2:
        raise SlimformerError("--sequences 1: directions are fitted on a half of the texts and tried on the others")
    name = joined(data)
    asked = lengths_of(lengths, [name])
    require_model(model, opening)
    require_data(name)

    from slimformer.calibrate.gather import sequence_length
    from slimformer.inspect.rows import row_spaces
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.report.names import source_names
    from slimformer.report.rows import rows_told, show_rows

    loaded = load_model(model, opening.resolve())
    architecture = describe(loaded.model)
    if architecture.family.image:
        raise SlimformerError("this looks along texts; for the attention of image models see slimformer inspect")
    read = partial(read_length, loaded, architecture, {"columns": column_names(columns), "seed": seed})
    length = sequence_length(loaded.model, architecture, None)
    rows = attention_rows(read, [name], asked, length, sequences, TOKENS)[name]
    with showing_progress(hidden=quiet or as_json) as progress:
        found = [
            rows_told(row_spaces(loaded.model, architecture, batches, share=share, seed=seed, progress=progress), share)
            for batches in rows.values()
        ]
    told = {"model": loaded.name, "data": name, "share": share, "sequences": sequences, "lengths": found}

    def tables() -> None:
        for each in found:
            show_rows(each, out, data=source_names(name), sequences=sequences)

    emit(told, as_json, quiet, tables)


def lengths_of(text: str, names: list[str]) -> list[int]:
    """The lengths in `64,128`; without data there is no attention to look at."""
    if text and not names:
        raise SlimformerError("--lengths are those of attention on data; give --data")
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise SlimformerError(f"--lengths {text!r} are not whole numbers; give e.g. 64,128") from None
    if any(n < 4 for n in found):
        raise SlimformerError(f"--lengths {text!r}: attention over fewer than 4 tokens has no spectrum to speak of")
    return sorted(set(found))


def read_length(loaded: Any, architecture: Any, how: dict[str, Any], name: str, length: int, tokens: int) -> Any:
    """Data for a model that is loaded already, in sequences of that length."""
    from slimformer.calibrate.gather import gather

    return gather(name, loaded.model, loaded.processor, architecture, seq_len=length, tokens=tokens, **how)


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

"""`slimformer attention`: how many keys attention needs, and what `inspect` shares with it."""

from __future__ import annotations

from typing import Annotated

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError

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
    chosen_lengths = lengths_of(lengths, [name])
    inputs.require_inputs(model, name, opening)

    from slimformer.report.names import source_names
    from slimformer.report.rows import show_rows
    from slimformer.verbs.look import attention as count_keys

    with showing_progress(hidden=shown.hidden) as progress:
        counts = count_keys(
            model, name, share=share, lengths=chosen_lengths, sequences=sequences, columns=opt.column_names(columns),
            seed=seed, progress=progress, **vars(opening.resolve()),
        )  # fmt: skip

    def tables() -> None:
        for each in counts["lengths"]:
            show_rows(each, out, data=source_names(name), sequences=sequences)

    emit(counts, shown, tables)


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

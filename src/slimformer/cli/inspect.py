"""The command that looks at a model before anything is cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from slimformer.cli.frontier import emit
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    DataOption,
    Force,
    Model,
    Quiet,
    Seed,
    SeqLen,
    opens_model,
)
from slimformer.cli.terminal import column_names, joined, progress_bars
from slimformer.errors import SlimformerError, TooFewTokens
from slimformer.models.opening import Opening

err = Console(stderr=True)
out = Console()
TOKENS = 8192
MOST_SETS = 4
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="also look at activations and attention on these data (as compress); again for others, side by side",
    ),
]
Lengths = Annotated[
    str,
    typer.Option(metavar="NUMBERS", help="lengths to look at attention at, e.g. 64,128", show_default="as data allow"),
]
Sequences = Annotated[int, typer.Option(min=1, metavar="N", help="sequences to look at attention on, for each length")]
LookTokens = Annotated[int, typer.Option("--tokens", min=1, metavar="N", help="tokens to look at activations on")]
Figures = Annotated[
    Path | None, typer.Option(metavar="DIR", help="folder for figures (PNG) and all numbers (inspection.json)")
]


@opens_model
def inspect(
    model: Model,
    data: Data = None,
    figures: Figures = None,
    lengths: Lengths = "",
    sequences: Sequences = 8,
    columns: Columns = "",
    tokens: LookTokens = TOKENS,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show what a model is made of and what can be cut: sizes, exact MACs and parameters, spectra, asymmetry of heads.

    Without --data only weights are read. With --data also spectra of activations and of attention, beside attention
    that means nothing, and how linear every feed-forward part is.
    """
    from slimformer.calibrate.gather import sequence_length
    from slimformer.inspect.portrait import weights_portrait
    from slimformer.inspect.summary import inspection
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.report.inspection import show_inspection
    from slimformer.report.portrait import show_portrait

    names = list(dict.fromkeys(data or []))
    if len(names) > MOST_SETS:
        raise SlimformerError(f"--data was given {len(names)} times; up to {MOST_SETS} data sets stand side by side")
    asked = _lengths(lengths, names)
    if figures is not None:
        _require_figures(figures, force)
    loaded = load_model(model, opening)
    architecture = describe(loaded.model)
    length = sequence_length(loaded.model, architecture, seq_len)
    read = partial(_read, loaded, architecture, {"columns": column_names(columns), "seed": seed})
    rows = _attention_rows(read, names, asked, length, sequences, tokens) if names else {}
    given = [read(name, length, tokens) for name in names]  # before the work: data may be refused
    found = inspection(loaded, architecture, length)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        whole = bool(names) or figures is not None
        found["weights"] = weights_portrait(loaded.model, architecture, values=whole, progress=progress)
        if names:
            found["data"] = [_look(loaded, architecture, each, rows[each.name], progress) for each in given]
    if figures is not None:
        _draw(found, figures, force)

    def tables() -> None:
        show_inspection(found, out)
        show_portrait(found, out)
        if figures is not None:
            typer.echo(f"\nfigures and inspection.json are in {figures}")

    emit(found, as_json, quiet, tables)


@opens_model
def attention(
    model: Model,
    data: DataOption = None,
    lengths: Lengths = "",
    sequences: Sequences = 8,
    share: Annotated[float, typer.Option(metavar="FRACTION", help="of the energy of attention to keep")] = 0.95,
    columns: Columns = "",
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """How many keys attention needs, layer by layer and head by head, and whether the same ones serve every text.

    A fixed projection of the keys (Linformer) can be given to a trained model without training only if they do.
    """
    from slimformer.calibrate.gather import sequence_length
    from slimformer.inspect.rows import row_spaces
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.report.rows import rows_told, show_rows

    if not 0 < share < 1:
        raise SlimformerError(f"--share {share}: a fraction between 0 and 1, e.g. 0.95")
    if sequences < 2:
        raise SlimformerError("--sequences 1: directions are fitted on a half of the texts and tried on the others")
    loaded = load_model(model, opening)
    architecture, name = describe(loaded.model), joined(data)
    if architecture.family.image:
        raise SlimformerError("this looks along texts; for the attention of image models see slimformer inspect")
    read = partial(_read, loaded, architecture, {"columns": column_names(columns), "seed": seed})
    length = sequence_length(loaded.model, architecture, None)
    rows = _attention_rows(read, [name], _lengths(lengths, [name]), length, sequences, TOKENS)[name]
    with progress_bars(err, hidden=quiet or as_json) as progress:
        found = [
            rows_told(row_spaces(loaded.model, architecture, batches, share=share, seed=seed, progress=progress), share)
            for batches in rows.values()
        ]
    told = {"model": loaded.name, "data": name, "share": share, "sequences": sequences, "lengths": found}

    def tables() -> None:
        for each in found:
            show_rows(each, out)

    emit(told, as_json, quiet, tables)


INSPECT: dict[Callable[..., None], str] = {
    inspect: "slimformer inspect demo:minilm --data builtin --figures figures",
    attention: "slimformer attention demo:minilm --data builtin --lengths 128",
}


def _lengths(text: str, names: list[str]) -> list[int]:
    if text and not names:
        raise SlimformerError("--lengths are those of attention on data; give --data")
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise SlimformerError(f"--lengths {text!r} are not whole numbers; give e.g. 64,128") from None
    if any(n < 4 for n in found):
        raise SlimformerError(f"--lengths {text!r}: attention over fewer than 4 tokens has no spectrum to speak of")
    return sorted(set(found))


def _read(loaded: Any, architecture: Any, how: dict[str, Any], name: str, length: int, tokens: int) -> Any:
    from slimformer.calibrate.gather import gather

    return gather(name, loaded.model, loaded.processor, architecture, seq_len=length, tokens=tokens, **how)


def _attention_rows(
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


def _look(loaded: Any, architecture: Any, given: Any, rows: dict[int, Any], progress: Any) -> dict[str, Any]:
    """One data set: what flows through the model on it."""
    from slimformer.inspect.portrait import data_portrait

    batches, held = given.splits["fit"], given.splits["report"]
    portrait = data_portrait(loaded.model, architecture, batches, rows, held=held, seed=given.seed, progress=progress)
    read_tokens = sum(batch.tokens for batch in batches)
    return {"name": given.name, "hash": given.hash, "tokens": read_tokens, "seq_len": given.seq_len, **portrait}


def _require_figures(folder: Path, force: bool) -> None:
    from slimformer.checkpoint.atomic import require_free
    from slimformer.report.figures import require_plotting

    require_plotting()
    require_free(folder, force)


def _draw(found: dict[str, Any], folder: Path, force: bool) -> None:
    from slimformer.checkpoint.atomic import writing
    from slimformer.evaluate.report import strict
    from slimformer.report.figures import draw

    with writing(folder, "inspection", force=force) as place:
        draw(found, place)
        stored = {"slimformer_inspection": 1, **found}
        (place / "inspection.json").write_text(json.dumps(strict(stored), allow_nan=False), encoding="utf-8")

"""`slimformer inspect`: what a model is made of, before anything is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.attention import TOKENS, lengths_of
from slimformer.cli.output import emit, out
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError

MOST_SETS = 4
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="also look at activations and attention on these data (as compress); again for others, side by side",
    ),
]
LookTokens = Annotated[int, typer.Option("--tokens", min=1, metavar="N", help="tokens to look at activations on")]
Figures = Annotated[
    Path | None, typer.Option(metavar="DIR", help="folder for figures (PNG) and all numbers (inspection.json)")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="also every term of the formulas, and tables of the weights")]


@opt.grouped
def inspect(
    model: opt.Model,
    data: Data = None,
    figures: Figures = None,
    lengths: opt.Lengths = "",
    sequences: opt.Sequences = 8,
    columns: opt.Columns = "",
    tokens: LookTokens = TOKENS,
    verbose: Verbose = False,
    seq_len: opt.SeqLen = None,
    seed: opt.Seed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Show what a model is made of and what can be cut: sizes, exact MACs and parameters, spectra, asymmetry of heads.

    The lines that matter; --verbose gives every term, spectra and symmetry of weights. With --data also spectra of
    activations and of attention, compared with attention that means nothing, and how linear every feed-forward part is.
    """
    names = list(dict.fromkeys(data or []))
    if len(names) > MOST_SETS:
        raise SlimformerError(f"--data was given {len(names)} times; up to {MOST_SETS} data sets stand side by side")
    chosen_lengths = lengths_of(lengths, names)
    if figures is not None:
        _require_figures(figures, force)
    inputs.require_model(model, opening)
    inputs.require_data(*names)

    from slimformer.report.inspection import show_brief, show_inspection
    from slimformer.report.portrait import show_portrait
    from slimformer.verbs.look import inspect as look_at

    with showing_progress(hidden=shown.hidden) as progress:
        portrait = look_at(
            model, names, lengths=chosen_lengths, sequences=sequences, columns=opt.column_names(columns), tokens=tokens,
            seq_len=seq_len, weights=verbose or shown.as_json, seed=seed, progress=progress,
            **_figures(figures, force), **vars(opening.resolve()),
        )  # fmt: skip

    def tables() -> None:
        (show_inspection if verbose else show_brief)(portrait, out)
        show_portrait(portrait if verbose else {**portrait, "weights": None}, out)
        if figures is not None:
            typer.echo(f"\nfigures and inspection.json are in {figures}")

    emit(portrait, shown, tables)


def _require_figures(folder: Path, force: bool) -> None:
    from slimformer.checkpoint.atomic import require_free
    from slimformer.report.figures import require_plotting

    require_plotting()
    require_free(folder, force)


def _figures(folder: Path | None, force: bool) -> dict[str, Any]:
    return {} if folder is None else {"figures": folder, "force": force}

"""`slimformer probe`: a classifier in one pass over labelled data."""

from __future__ import annotations

from typing import Annotated

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out
from slimformer.cli.terminal import showing_progress
from slimformer.errors import HeadDoesNotFit
from slimformer.heads.asked import require_pools, require_target
from slimformer.report.heads import show_probe

Labelled = Annotated[
    str,
    typer.Option(
        "--data", metavar="DATA", help="labelled rows: tsv, csv, jsonl or parquet file, data set's name, image folder"
    ),
]
Eval = Annotated[str, typer.Option("--eval", metavar="DATA", help="labelled rows to score on", show_default=False)]
LabelName = Annotated[
    str, typer.Option("--label", metavar="NAME", help="column with the label", show_default="by name")
]
Kind = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="lda, ridge, random (ReLU features), ncm (class means) or newton (logistic regression; features wait in a "
        "temporary file)",
    ),
]
Target = Annotated[str, typer.Option(metavar="NAME", help="classes, numbers (regression), or auto: by the labels")]
Pool = Annotated[
    str, typer.Option(metavar="NAMES", help="cls, mean, last; the best of several by commas, or auto: the usual ones")
]
Layer = Annotated[str, typer.Option(metavar="N", help="last, a number, several by commas, or auto: the best of all")]
Compare = Annotated[bool, typer.Option("--compare", help="pairs: encode each text alone, use |u − v| and u ∘ v")]
ClassWeight = Annotated[bool, typer.Option("--balanced", help="every class weighs the same, however many rows it has")]
Shrinkage = Annotated[str, typer.Option(metavar="VALUE", help="loo, ledoit-wolf, or a number")]


@opt.grouped
def probe(
    model: opt.Model,
    data: Labelled,
    eval_data: Eval = "",
    out_folder: opt.WithHead = None,
    kind: Kind = "lda",
    pool: Pool = "auto",
    layer: Layer = "last",
    target: Target = "auto",
    columns: opt.Columns = "",
    label: LabelName = "",
    shrinkage: Shrinkage = "loo",
    balanced: ClassWeight = False,
    compare: Compare = False,
    samples: opt.Samples = None,
    seq_len: opt.ReadLength = 128,
    seed: opt.Seed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Turn MODEL into a classifier in one pass over labelled data, without training; score it; save it."""
    pools = _pools(pool)
    require_target(target)
    if out_folder is not None:
        inputs.require_place(out_folder, force, model, data, eval_data)
        _require_room(kind, compare)
    inputs.require_model(model, opening)
    inputs.require_data(data, eval_data or None)

    from slimformer.verbs.solve import probe as solve_head

    with showing_progress(hidden=shown.hidden) as progress:
        solved = solve_head(
            model, data, eval_data=eval_data or None, out=out_folder, kind=kind, pool=pools, layer=_layers(layer),
            target=target, columns=opt.column_names(columns), label=label or None, shrinkage=_number(shrinkage),
            balanced=balanced, compare=compare, samples=samples, seq_len=seq_len, seed=seed, force=force,
            progress=progress, **vars(opening.resolve()),
        )  # fmt: skip
    emit(solved.report, shown, lambda: show_probe(solved.report, out_folder, out))


def _pools(text: str) -> tuple[str, ...]:
    chosen = () if text == "auto" else tuple(opt.column_names(text) or ())
    require_pools(chosen)
    return chosen


def _layers(text: str) -> str | list[int]:
    if text in ("last", "auto"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise HeadDoesNotFit(f"--layer {text!r} is neither last, auto nor numbers, the first block being 1") from None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _require_room(kind: str, compare: bool) -> None:
    if kind == "random" or compare:
        what = "random features" if kind == "random" else "a comparison of two texts"
        raise HeadDoesNotFit(f"no stock classifier can hold {what}; leave out --out, or use lda or ridge on one text")

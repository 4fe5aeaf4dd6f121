"""`slimformer probe`: a classifier in one pass over labelled data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

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

    from slimformer.heads import classify
    from slimformer.heads.features import Features
    from slimformer.heads.parameters import HeadParameters
    from slimformer.models.load import load_model

    loaded = load_model(model, opening.resolve())
    if out_folder is not None:
        _require_place(loaded, pools)
    rows = classify.LabelledRows(data, opt.column_names(columns), label or None, samples, seed)
    head = HeadParameters(
        kind, shrinkage=_number(shrinkage), class_weight="balanced" if balanced else None, random_state=seed
    )
    features = Features(pools, _layers(layer, loaded), seq_len, compare)
    with showing_progress(hidden=shown.hidden) as progress:
        train = classify.labelled(loaded, rows)
        probed = classify.probe(loaded, train, features, target=target, head=head, progress=progress)
        report = {**probed.report, "data": data, "seed": seed}
        if eval_data:
            held_out = classify.labelled(loaded, replace(rows, source=eval_data, split="evaluation"))
            report["scores"] = {"data": eval_data, **classify.score(loaded, probed, held_out, progress=progress)}
            report["warnings"] = classify.seen_before(data, eval_data)
        if out_folder is not None:
            progress("save and verify", 0, 1)
            report["saved"] = _save(loaded, replace(probed, report=report), out_folder, seq_len, force)
            progress("save and verify", 1, 1)
    emit(report, shown, lambda: show_probe(report, out_folder, out))


def _save(loaded: Any, probed: Any, folder: Path, seq_len: int, force: bool) -> str:
    """As a stock classifier where one can say it, else for sentence-transformers; gives the class that opens it."""
    from slimformer.heads.attach import attach
    from slimformer.heads.classifier_folder import save_classifier, save_sentence_classifier
    from slimformer.heads.classify import padding
    from slimformer.models import family_of

    if probed.reading.pool == "mean" and not family_of(loaded.model.config).image:
        save_sentence_classifier(folder, loaded, probed, seq_len=seq_len, force=force)
        return "SentenceTransformer"
    classifier = attach(loaded.model, probed.head, probed.reading, pad=padding(loaded.processor))
    save_classifier(classifier, folder, loaded, probed, force=force)
    return type(classifier).__name__


def _pools(text: str) -> tuple[str, ...]:
    chosen = () if text == "auto" else tuple(opt.column_names(text) or ())
    require_pools(chosen)
    return chosen


def _layers(text: str, loaded: Any) -> tuple[int, ...]:
    from slimformer.models import describe

    n_blocks = describe(loaded.model).n_layers
    if text in ("last", "auto"):
        return (n_blocks,) if text == "last" else tuple(range(1, n_blocks + 1))
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise HeadDoesNotFit(f"--layer {text!r} is neither last, auto nor a number of 1 to {n_blocks}") from None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _require_place(loaded: Any, pools: tuple[str, ...]) -> None:
    """Before the pass over the data: is there a folder that reads the model so?"""
    from slimformer.heads.features import usual_pools

    usual = usual_pools(loaded.model)
    if pools and not set(pools) & set(usual):
        raise HeadDoesNotFit(
            f"--pool {', '.join(pools)}: no folder can hold a head that reads this model so; "
            f"use --pool {' or '.join(usual)}, or leave out --out"
        )


def _require_room(kind: str, compare: bool) -> None:
    if kind == "random" or compare:
        what = "random features" if kind == "random" else "a comparison of two texts"
        raise HeadDoesNotFit(f"no stock classifier can hold {what}; leave out --out, or use lda or ridge on one text")

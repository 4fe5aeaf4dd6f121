"""Commands that solve something on top of a frozen model: a classifier, a language-model head, a map between two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from slimformer.cli_front import emit
from slimformer.options import AsJson, Columns, Device, Force, Model, Quiet, Samples, Seed
from slimformer.shell import column_names, progress_bars, usable_device

err = Console(stderr=True)
out = Console()
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
Kind = Annotated[str, typer.Option(metavar="NAME", help="lda, ridge, random (ReLU features) or ncm (class means)")]
Target = Annotated[str, typer.Option(metavar="NAME", help="classes, numbers (regression), or auto: by the labels")]
Pool = Annotated[
    str, typer.Option(metavar="NAMES", help="cls, mean, last; the best of several by commas, or auto: the usual ones")
]
Layer = Annotated[str, typer.Option(metavar="N", help="last, a number, several by commas, or auto: the best of all")]
Length = Annotated[int, typer.Option("--seq-len", min=2, metavar="N", help="tokens read of each text at most")]
Compare = Annotated[bool, typer.Option("--compare", help="pairs: encode each text alone, use |u − v| and u ∘ v")]
ClassWeight = Annotated[bool, typer.Option("--balanced", help="every class weighs the same, however many rows it has")]
Shrinkage = Annotated[str, typer.Option(metavar="VALUE", help="loo, ledoit-wolf, or a number")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="save the model with its head here")]


def probe(
    model: Model,
    data: Labelled,
    eval_data: Eval = "",
    out_folder: Out = None,
    kind: Kind = "lda",
    pool: Pool = "auto",
    layer: Layer = "last",
    target: Target = "auto",
    columns: Columns = "",
    label: LabelName = "",
    shrinkage: Shrinkage = "loo",
    balanced: ClassWeight = False,
    compare: Compare = False,
    samples: Samples = None,
    seq_len: Length = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Turn MODEL into a classifier in one pass over labelled data, without training; score it; save it."""
    from slimformer import classify
    from slimformer.checkpoint.atomic import require_free
    from slimformer.models.load import load_model
    from slimformer.stages import require_apart

    pools = _pools(pool)
    if out_folder is not None:
        require_apart(out_folder, model, data, eval_data)
        require_free(out_folder, force)
        _require_room(kind, compare)
    loaded = load_model(model, device=usable_device(device))
    how: dict[str, Any] = {"columns": column_names(columns), "label": label or None, "samples": samples, "seed": seed}
    with progress_bars(err, hidden=quiet or as_json) as progress:
        found = classify.probe(
            loaded, classify.labelled(loaded, data, **how), kind=kind, target=target, pools=pools,
            layers=_layers(layer, loaded), seq_len=seq_len, compare=compare, progress=progress,
            shrinkage=_number(shrinkage), class_weight="balanced" if balanced else None, random_state=seed,
        )  # fmt: skip
        report = {**found.report, "data": data, "seed": seed}
        if eval_data:
            held_out = classify.labelled(loaded, eval_data, split="evaluation", **how)
            report["scores"] = {"data": eval_data, **classify.score(loaded, found, held_out, progress=progress)}
        if out_folder is not None:
            progress("save and verify", 0, 1)
            report["saved"] = _save(loaded, found, out_folder, report, seq_len, force)
            progress("save and verify", 1, 1)
    emit(report, as_json, quiet, lambda: show_probe(report, out_folder))


HEADS: dict[Callable[..., None], str] = {
    probe: "slimformer probe demo:minilm --data train.tsv --eval dev.tsv --out classifier",
}


def _save(loaded: Any, found: Any, folder: Path, report: dict[str, Any], seq_len: int, force: bool) -> str:
    """As a stock classifier where one can say it, else for sentence-transformers; gives the class that opens it."""
    from slimformer.classify import padding
    from slimformer.heads.attach import attach
    from slimformer.heads.classifier_folder import save_classifier, save_sentence_classifier
    from slimformer.models import family_of

    rest: dict[str, Any] = {"processor": loaded.processor, "head": found.head, "report": report, "force": force}
    if found.reading.pool == "mean" and not family_of(loaded.model.config.model_type).image:
        save_sentence_classifier(loaded.model, folder, reading=found.reading, seq_len=seq_len, **rest)
        return "SentenceTransformer"
    classifier = attach(loaded.model, found.head, found.reading, pad=padding(loaded.processor))
    save_classifier(classifier, folder, **rest)
    return type(classifier).__name__


def show_probe(report: dict[str, Any], folder: Path | None) -> None:
    """What was tried, what it scores, and where it is."""
    tried = Table(title=f"{report['kind']} on {report['rows']:,} rows: leave-one-out", title_justify="left")
    for name in ("features", "loss", "error", "shrinkage"):
        tried.add_column(name, justify="right")
    for row in report["tried"]:
        best = {"pool": row["pool"], "layer": row["layer"]} == report["reading"]
        values = ["" if row[name] is None else f"{row[name]:.4g}" for name in ("loss", "error", "shrinkage")]
        tried.add_row(f"{row['pool']} of layer {row['layer']}", *values, style="bold" if best else None)
    out.print(tried)
    if scores := report.get("scores"):
        out.print(scores_table(scores))
    if matrix := (scores or {}).get("confusion"):
        out.print(confusion_table(matrix))
    if folder is not None:
        typer.echo(f"\nsaved in {folder} as a {report['saved']}")


def scores_table(scores: dict[str, Any]) -> Table:
    """Scores with their intervals."""
    table = Table(title=f"{scores['data']}: {scores['examples']:,} examples", title_justify="left")
    for name in ("score", "value", "95 % interval"):
        table.add_column(name, justify="right")
    for name, value in scores.items():
        if isinstance(value, dict) and "value" in value:
            interval = f"{value['low']:.4f} … {value['high']:.4f}" if "low" in value else ""
            table.add_row(name.replace("_", " "), f"{value['value']:.4f}", interval)
        elif isinstance(value, float):
            table.add_row(name.replace("_", " "), f"{value:.4f}", "")
    return table


def confusion_table(matrix: dict[str, Any]) -> Table:
    """True labels down, predicted ones across; left out where there are too many to read."""
    labels = matrix["labels"][:20]
    table = Table(title="confusion (rows: true, columns: predicted)", title_justify="left")
    for name in ("", *labels):
        table.add_column(name, justify="right")
    for name, row in zip(labels, matrix["counts"], strict=False):
        table.add_row(name, *(str(n) for n in row[: len(labels)]))
    return table


def _pools(text: str) -> tuple[str, ...]:
    from slimformer.errors import HeadDoesNotFit
    from slimformer.heads.features import POOLS

    chosen = () if text == "auto" else tuple(column_names(text) or ())
    strange = [name for name in chosen if name not in POOLS]
    if strange:
        raise HeadDoesNotFit(f"--pool {strange[0]!r} is not known; choose from {', '.join(POOLS)} or auto")
    return chosen


def _layers(text: str, loaded: Any) -> tuple[int, ...]:
    from slimformer.errors import HeadDoesNotFit
    from slimformer.models import describe

    n_blocks = describe(loaded.model).n_blocks
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


def _require_room(kind: str, compare: bool) -> None:
    from slimformer.errors import HeadDoesNotFit

    if kind == "random" or compare:
        what = "random features" if kind == "random" else "a comparison of two texts"
        raise HeadDoesNotFit(f"no stock classifier can hold {what}; leave out --out, or use lda or ridge on one text")

"""Commands that solve something on top of a frozen model: a classifier, a language-model head, a map between two."""

from __future__ import annotations

from collections.abc import Callable
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
    Samples,
    Seed,
    SeqLen,
    Tokens,
    opens_model,
)
from slimformer.cli.terminal import column_names, joined, progress_bars
from slimformer.models.opening import Opening
from slimformer.report.heads import show_adapted, show_match, show_probe

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
Length = Annotated[int, typer.Option("--seq-len", min=2, metavar="N", help="tokens read of each text at most")]
Compare = Annotated[bool, typer.Option("--compare", help="pairs: encode each text alone, use |u − v| and u ∘ v")]
ClassWeight = Annotated[bool, typer.Option("--balanced", help="every class weighs the same, however many rows it has")]
Shrinkage = Annotated[str, typer.Option(metavar="VALUE", help="loo, ledoit-wolf, or a number")]
Side = Annotated[
    str, typer.Option("--source", metavar="FEATURES|MODEL", help="a .safetensors or .npy file of rows, or a model")
]
Side2 = Annotated[str, typer.Option("--target", metavar="FEATURES|MODEL", help="the same for the other side")]
PairData = Annotated[
    str,
    typer.Option(
        "--data", metavar="DATA", help="what both models read: a table with image and caption columns, or text",
        show_default=False,
    ),
]  # fmt: skip
Method = Annotated[
    str, typer.Option(metavar="NAMES", help="ridge, procrustes, cca, scale-free, relative; several by commas, or all")
]
SidePool = Annotated[str, typer.Option(metavar="NAME", help="cls, mean or last", show_default="mean; cls for images")]
SidePool2 = Annotated[str, typer.Option(metavar="NAME", help="cls, mean or last", show_default="mean; cls for images")]
MapOut = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="save the best map here")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="save the model with its head here")]


@opens_model
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
    opening: Opening = AS_USUAL,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Turn MODEL into a classifier in one pass over labelled data, without training; score it; save it."""
    from slimformer.checkpoint.atomic import require_free
    from slimformer.heads import classify
    from slimformer.models.load import load_model
    from slimformer.steps.result import require_apart

    pools = _pools(pool)
    _require_target(target)
    if out_folder is not None:
        require_apart(out_folder, model, data, eval_data)
        require_free(out_folder, force)
        _require_room(kind, compare)
    loaded = load_model(model, opening)
    if out_folder is not None:
        _require_place(loaded, pools)
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
            report["warnings"] = classify.seen_before(data, eval_data)
        if out_folder is not None:
            progress("save and verify", 0, 1)
            report["saved"] = _save(loaded, found, out_folder, report, seq_len, force)
            progress("save and verify", 1, 1)
    emit(report, as_json, quiet, lambda: show_probe(report, out_folder, out))


@opens_model
def match(
    source: Side,
    target: Side2,
    data: PairData = "",
    out_folder: MapOut = None,
    method: Method = "all",
    source_pool: SidePool = "",
    target_pool: SidePool2 = "",
    samples: Samples = None,
    seq_len: Length = 64,
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Match two models on pairs, in closed form: recall both ways on pairs set aside, method by method."""
    from slimformer.checkpoint.atomic import require_free
    from slimformer.errors import DataNotFound
    from slimformer.heads import pairing
    from slimformer.steps.result import require_apart

    if out_folder is not None:
        require_apart(out_folder, source, target, data)
        require_free(out_folder, force)
    methods = _methods(method)
    if not data and not (pairing.is_features(source) and pairing.is_features(target)):
        raise DataNotFound("models are matched on things both read; name them with --data, e.g. captions.jsonl")
    how: dict[str, Any] = {"seq_len": seq_len, "opening": opening, "samples": samples}
    with progress_bars(err, hidden=quiet or as_json) as progress:
        X, Y = (
            pairing.read_features(name)[:samples] if pairing.is_features(name)
            else pairing.model_features(name, data, pool=pool or None, progress=progress, **how)
            for name, pool in ((source, source_pool), (target, target_pool))
        )  # fmt: skip
        found = pairing.fit_and_retrieve(X, Y, methods, seed=seed, progress=progress)
        report = {**found.report, "source": source, "target": target, "data": data, "seed": seed}
        if out_folder is not None:
            _save_map(found.best, out_folder, report, force)
    emit(report, as_json, quiet, lambda: show_match(report, out_folder, out))


@opens_model
def adapt(
    model: Model,
    data: DataOption,
    out_folder: Out = None,
    source_data: Annotated[
        str, typer.Option("--source-data", metavar="DATA", help="text of the old domain, to see what is forgotten")
    ] = "",
    method: Annotated[str, typer.Option(metavar="NAME", help="bohning, discriminant or least-squares")] = "bohning",
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Adapt the head of a language model to the domain of --data, in closed form; perplexity before and after."""
    from slimformer.calibrate.gather import gather
    from slimformer.checkpoint.atomic import require_free
    from slimformer.heads import adapt as lm_adapt
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.steps.result import require_apart

    name = joined(data)
    if out_folder is not None:
        require_apart(out_folder, model, *name.split(","), source_data)
        require_free(out_folder, force)
    loaded = load_model(model, opening)
    how: dict[str, Any] = {
        "seq_len": seq_len, "tokens": tokens, "samples": samples, "columns": column_names(columns), "seed": seed
    }  # fmt: skip
    architecture = describe(loaded.model)
    splits = gather(name, loaded.model, loaded.processor, architecture, **how).splits
    texts = {"domain": splits["report"]}
    if source_data:
        old = gather(source_data, loaded.model, loaded.processor, architecture, **how, purpose="evaluation")
        texts["source"] = old.splits["report"]
    with progress_bars(err, hidden=quiet or as_json) as progress:
        progress("states", 0, 2)
        fit, select = (lm_adapt.states_of(loaded.model, splits[name]) for name in ("fit", "select"))
        progress("states", 2, 2)
        found = lm_adapt.adapt_head(loaded.model, fit, select, method, progress=progress)
        adapted, warning = lm_adapt.with_head(loaded.model, found.W)
        measured = lm_adapt.before_and_after(loaded.model, adapted, texts)
        report = {
            "slimformer_adapt": 1, "model": loaded.name, "method": method, "chosen": found.chosen, "data": name,
            "source_data": source_data, "tokens": len(fit.t), "perplexity": measured, "warning": warning,
        }  # fmt: skip
        if out_folder is not None:
            _save_adapted(loaded, adapted, out_folder, report, force)
    emit(report, as_json, quiet, lambda: show_adapted(report, out_folder, out))


HEADS: dict[Callable[..., None], str] = {
    probe: "slimformer probe demo:minilm --data train.tsv --eval dev.tsv --out classifier",
    match: "slimformer match --source ./vit --target demo:minilm --data captions.jsonl --out map",
    adapt: "slimformer adapt demo:smollm2 --data domain.txt --source-data builtin --out adapted",
}


def _save_map(found: Any, folder: Path, report: dict[str, Any], force: bool) -> None:
    import json

    from slimformer.checkpoint.atomic import writing
    from slimformer.heads.match_file import write_match

    with writing(folder, "match", force=force) as partial:
        write_match(found, partial / "match.safetensors")
        (partial / "match.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def _save_adapted(loaded: Any, adapted: Any, folder: Path, report: dict[str, Any], force: bool) -> None:
    import json

    from slimformer.checkpoint import save as checkpoint
    from slimformer.checkpoint.atomic import writing

    adapted = adapted.to(loaded.dtype)
    with writing(folder, "checkpoint", force=force) as partial:
        checkpoint.write_model(adapted, partial)
        checkpoint.write_belongings(partial, loaded.processor, loaded.companions)
        (partial / "adapt.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        checkpoint.verify_reload(adapted, partial)


def _methods(text: str) -> tuple[str, ...]:
    from slimformer.errors import UnknownMethod
    from slimformer.heads.match import METHODS

    chosen = tuple(METHODS) if text == "all" else tuple(column_names(text) or ())
    strange = [name for name in chosen if name not in METHODS]
    if strange:
        raise UnknownMethod(f"--method {strange[0]!r} is not known; choose from {', '.join(METHODS)} or all")
    return chosen


def _save(loaded: Any, found: Any, folder: Path, report: dict[str, Any], seq_len: int, force: bool) -> str:
    """As a stock classifier where one can say it, else for sentence-transformers; gives the class that opens it."""
    from slimformer.heads.attach import attach
    from slimformer.heads.classifier_folder import save_classifier, save_sentence_classifier
    from slimformer.heads.classify import padding
    from slimformer.models import family_of

    rest: dict[str, Any] = {"source": loaded, "head": found.head, "report": report, "force": force}
    if found.reading.pool == "mean" and not family_of(loaded.model.config).image:
        save_sentence_classifier(folder, reading=found.reading, seq_len=seq_len, **rest)
        return "SentenceTransformer"
    classifier = attach(loaded.model, found.head, found.reading, pad=padding(loaded.processor))
    save_classifier(classifier, folder, **rest)
    return type(classifier).__name__


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


def _require_place(loaded: Any, pools: tuple[str, ...]) -> None:
    """Before the pass over the data: is there a folder that reads the model so?"""
    from slimformer.errors import HeadDoesNotFit
    from slimformer.heads.features import usual_pools

    usual = usual_pools(loaded.model)
    if pools and not set(pools) & set(usual):
        raise HeadDoesNotFit(
            f"--pool {', '.join(pools)}: no folder can hold a head that reads this model so; "
            f"use --pool {' or '.join(usual)}, or leave out --out"
        )


def _require_target(target: str) -> None:
    from slimformer.errors import HeadDoesNotFit

    if target not in ("auto", "classes", "numbers"):
        raise HeadDoesNotFit(f"--target is auto, classes or numbers, not {target!r}; several labels a row need Python")


def _require_room(kind: str, compare: bool) -> None:
    from slimformer.errors import HeadDoesNotFit

    if kind == "random" or compare:
        what = "random features" if kind == "random" else "a comparison of two texts"
        raise HeadDoesNotFit(f"no stock classifier can hold {what}; leave out --out, or use lda or ridge on one text")

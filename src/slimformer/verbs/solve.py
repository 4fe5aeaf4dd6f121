"""Solved in closed form, not trained: a classifier, a language-model head for a domain, a map between two models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.builtin import BUILTIN
from slimformer.calibrate.documents import UNNAMED, Source
from slimformer.checkpoint import save as checkpoint
from slimformer.checkpoint.atomic import require_apart, writing
from slimformer.errors import HeadDoesNotFit
from slimformer.heads import adapt as lm_adapt
from slimformer.heads import classify, pairing
from slimformer.heads.asked import is_features, require_adaptation, require_maps, require_pools, require_target
from slimformer.heads.attach import attach
from slimformer.heads.classifier_folder import save_classifier, save_sentence_classifier
from slimformer.heads.features import Features, usual_pools
from slimformer.heads.match_file import write_match
from slimformer.heads.parameters import HeadParameters
from slimformer.messages.arguments import PATH, TEXT, YES_OR_NO, Kind, check_arguments
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import describe, family_of
from slimformer.models.load import Loaded, open_for_work
from slimformer.models.opening import OpeningOptions, opening_in
from slimformer.verbs.asked import MODEL_OR_LOADED, Model, ReadingOptions, read_for

OUT = replace(PATH, optional=True)
NAMES = Kind("a list of names", lambda x: isinstance(x, list | tuple) and all(isinstance(each, str) for each in x))
LAYERS = Kind("last, auto or a list of numbers", lambda x: x in ("last", "auto") or isinstance(x, list | tuple))
SHRINKAGE = Kind("loo, ledoit-wolf, or a number", lambda x: isinstance(x, str | int | float))
SIDE = Kind("features, or a model", lambda x: isinstance(x, Tensor) or MODEL_OR_LOADED.accepts(x))


class ProbeOptions(ReadingOptions, total=False):
    """`kind` of head (lda, ridge, random, ncm, newton), `pool`s to choose from (cls, mean, last), `layer`s (last, auto,
    or numbers), `target` (auto, classes, numbers), `label` (the column), `shrinkage` (loo, ledoit-wolf or a number),
    `balanced` classes, `compare` pairs; `force` replaces an older folder; the others say how rows are read and the
    model is opened."""

    kind: str
    pool: Sequence[str]
    layer: str | Sequence[int]
    target: str
    label: str | None
    shrinkage: float | str
    balanced: bool
    compare: bool
    force: bool


class AdaptOptions(ReadingOptions, total=False):
    """`method` (bohning, discriminant, least-squares); `force` replaces an older folder; the others say how text is
    read and the model is opened."""

    method: str
    force: bool


class MatchOptions(OpeningOptions, total=False):
    """`methods` (ridge, procrustes, cca, scale-free, relative; all), how models' states are pooled (`source_pool`,
    `target_pool`: cls, mean, last), at most so many `samples`, sequences of `seq_len`, the `seed` that sets pairs
    aside; `force` replaces an older folder; the others say how models are opened."""

    methods: Sequence[str]
    source_pool: str | None
    target_pool: str | None
    samples: int | None
    seq_len: int
    seed: int
    force: bool


@dataclass(frozen=True)
class AdaptedModel:
    """A language model with another head, and what that did."""

    model: PreTrainedModel
    report: dict[str, Any]


@check_arguments(
    model=MODEL_OR_LOADED, data=PATH, eval_data=OUT, out=OUT, kind=TEXT, pool=NAMES, layer=LAYERS, target=TEXT,
    label=replace(TEXT, optional=True), shrinkage=SHRINKAGE, balanced=YES_OR_NO, compare=YES_OR_NO,
)  # fmt: skip
def probe(
    model: Model, data: str | Path, *, eval_data: str | Path | None = None, out: str | Path | None = None,
    progress: Progress = silent, **how: Unpack[ProbeOptions],
) -> classify.Probed:  # fmt: skip
    """Turn `model` into a classifier in one pass over labelled data, without training.

    Which states are read (pooling, layer) is chosen by leave-one-out loss on `data` alone; `eval_data` are scored. With
    `out` the classifier is saved, as a stock class of transformers or for sentence-transformers.

    >>> found = slimformer.probe("bert", "table.tsv", columns=["sentence"])
    >>> found.reading.pool in ("cls", "mean"), found.report["data"]
    (True, 'table.tsv')
    """
    given: dict[str, Any] = dict(how)
    pools, target, compare = tuple(given.get("pool", ())), given.get("target", "auto"), given.get("compare", False)
    require_pools(pools)
    require_target(target)
    kind, length, seed = given.get("kind", "lda"), given.get("seq_len", 128), given.get("seed", 0)
    loaded = open_for_work(model, given.get("processor"), opening_in(given))
    if out is not None:
        require_apart(Path(out), model if isinstance(model, str | Path) else None)
        _require_place(loaded, pools)
    rows = classify.LabelledRows(data, given.get("columns"), given.get("label"), given.get("samples"), seed)
    weight = "balanced" if given.get("balanced") else None
    head = HeadParameters(kind, shrinkage=given.get("shrinkage", "loo"), class_weight=weight, random_state=seed)
    features = Features(pools, _layers(given.get("layer", "last"), loaded), length, compare)
    train = classify.labelled(loaded, rows)
    solved = classify.probe(loaded, train, features, target=target, head=head, progress=progress)
    report = {**solved.report, "data": str(data), "seed": seed}
    if eval_data is not None:
        held_out = classify.labelled(loaded, replace(rows, source=eval_data, split="evaluation"))
        report["scores"] = {"data": str(eval_data), **classify.score(loaded, solved, held_out, progress=progress)}
        report["warnings"] = classify.seen_before(str(data), str(eval_data))
    solved = replace(solved, report=report)
    if out is None:
        return solved
    progress("save and verify", 0, 1)
    report["saved"] = _save_probed(loaded, solved, Path(out), length, given.get("force", False))
    progress("save and verify", 1, 1)
    return solved


@check_arguments(model=MODEL_OR_LOADED, source_data=OUT, out=OUT)
def adapt(
    model: Model, data: Source | Tensor = UNNAMED, *, source_data: str | Path | None = None,
    out: str | Path | None = None, progress: Progress = silent, **how: Unpack[AdaptOptions],
) -> AdaptedModel:  # fmt: skip
    """Adapt the head of a language model to the domain of `data`, in closed form.

    Perplexity before and after on what was held out of `data`, on other text that is built in, and on `source_data`,
    text of the old domain, to see what is forgotten. Cost: one pass over the text, and one solution of the head.

    >>> found = slimformer.adapt("llama", "text.txt", tokens=600, method="least-squares")
    >>> found.report["method"], type(found.model).__name__
    ('least-squares', 'LlamaForCausalLM')
    """
    given: dict[str, Any] = dict(how)
    method, force = given.pop("method", "bohning"), given.pop("force", False)
    require_adaptation(method)
    if out is not None:
        require_apart(Path(out), model if isinstance(model, str | Path) else None)
    loaded = open_for_work(model, given.pop("processor", None), opening_in(given))
    lm_adapt.require_language_model(loaded.model)
    read = read_for(loaded, data, given, broad=True)
    splits = read.splits | read.own  # broad text is measured on, not fitted
    texts = {"domain": splits["report"], **{f"{BUILTIN}: {source}": part for source, part in read.other.items()}}
    if source_data:
        texts["source"] = read_for(loaded, source_data, given, purpose="evaluation").splits["report"]
    progress("states", 0, 2)
    fit, select = (lm_adapt.states_of(loaded.model, splits[name]) for name in ("fit", "select"))
    progress("states", 2, 2)
    solved = lm_adapt.adapt_head(loaded.model, fit, select, method, progress=progress)
    adapted, warning = lm_adapt.with_head(loaded.model, solved.W)
    measured = lm_adapt.before_and_after(loaded.model, adapted, texts)
    report = {
        "slimformer_adapt": 1, "model": loaded.name, "method": method, "chosen": solved.chosen, "data": read.name,
        "source_data": str(source_data or ""), "tokens": len(fit.t), "perplexity": measured,
        "warnings": [*([warning] if warning else ()), *lm_adapt.worse_elsewhere(measured)],
    }  # fmt: skip
    if out is not None:
        _save_adapted(loaded, adapted, Path(out), report, force)
    return AdaptedModel(adapted, report)


@check_arguments(
    source=SIDE, target=SIDE, data=OUT, out=OUT, methods=NAMES, source_pool=replace(TEXT, optional=True),
    target_pool=replace(TEXT, optional=True),
)  # fmt: skip
def match(
    source: Tensor | Model, target: Tensor | Model, data: str | Path | None = None, *, out: str | Path | None = None,
    progress: Progress = silent, **how: Unpack[MatchOptions],
) -> pairing.Matched:  # fmt: skip
    """Match two models on pairs, in closed form: recall both ways on pairs set aside, by method, and the best map.

    A side is a model, which reads `data` (a table with images and captions, or text), or what it has read already: a
    tensor of features, or the name of a .npy or .safetensors file of them, one row for each pair.

    >>> found = slimformer.match("bert", "llama", "text.txt", methods=["ridge"], samples=40)
    >>> found.report["best"], found.report["pairs"], found.report["held_out"]
    ('ridge', 32, 8)
    """
    given: dict[str, Any] = dict(how)
    methods, seed = tuple(given.get("methods", ())), given.get("seed", 0)
    require_maps(methods)
    X, Y = (
        _side(side, data, given.get(f"{name}_pool"), given, progress)
        for side, name in ((source, "source"), (target, "target"))
    )
    fitted = pairing.fit_and_retrieve(X, Y, methods, seed=seed, progress=progress)
    names = {"source": _named(source), "target": _named(target), "data": str(data or "")}
    fitted = replace(fitted, report={**fitted.report, **names, "seed": seed})
    if out is not None:
        with writing(Path(out), "match", force=given.get("force", False)) as partial:
            write_match(fitted.best, partial / "match.safetensors")
            (partial / "match.json").write_text(json.dumps(fitted.report, indent=1), encoding="utf-8")
    return fitted


def _side(side: Any, data: Any, pool: str | None, given: dict[str, Any], progress: Progress) -> Tensor:
    """Features, one row for each pair."""
    most = given.get("samples")
    if isinstance(side, Tensor):
        return side.double()[:most]
    if isinstance(side, str | Path) and is_features(str(side)):
        return pairing.read_features(side)[:most]
    if data is None:
        raise HeadDoesNotFit(f"a model is matched on what it reads; give {option('data')}, or features")
    loaded = open_for_work(side, None, opening_in(dict(given)))
    length = given.get("seq_len", 64)
    return pairing.model_features(loaded, str(data), pool=pool, seq_len=length, samples=most, progress=progress)


def _named(side: Any) -> str:
    if isinstance(side, Tensor):
        return "features"
    return side.name if isinstance(side, Loaded) else str(side) if isinstance(side, str | Path) else type(side).__name__


def _layers(choice: str | Sequence[int], loaded: Loaded) -> tuple[int, ...]:
    n_blocks = describe(loaded.model).n_layers
    if isinstance(choice, str):
        return (n_blocks,) if choice == "last" else tuple(range(1, n_blocks + 1))
    return tuple(choice)


def _require_place(loaded: Loaded, pools: tuple[str, ...]) -> None:
    """Before the pass over the data: is there a folder that reads the model so?"""
    usual = usual_pools(loaded.model)
    if pools and not set(pools) & set(usual):
        raise HeadDoesNotFit(
            f"{option('pool', ', '.join(pools))}: no folder can hold a head that reads this model so; use "
            f"{option('pool', ' or '.join(usual))}, or leave out {option('folder')}"
        )


def _save_probed(loaded: Loaded, solved: classify.Probed, folder: Path, seq_len: int, force: bool) -> str:
    """As a stock classifier where one can say it, else for sentence-transformers; gives the class that opens it."""
    if solved.reading.pool == "mean" and not family_of(loaded.model.config).image:
        save_sentence_classifier(folder, loaded, solved, seq_len=seq_len, force=force)
        return "SentenceTransformer"
    classifier = attach(loaded.model, solved.head, solved.reading, pad=classify.padding(loaded.processor))
    save_classifier(classifier, folder, loaded, solved, force=force)
    return type(classifier).__name__


def _save_adapted(loaded: Loaded, adapted: Any, folder: Path, report: dict[str, Any], force: bool) -> None:
    adapted = adapted.to(loaded.dtype)
    with writing(folder, "checkpoint", force=force) as partial:
        checkpoint.write_model(adapted, partial)
        checkpoint.write_belongings(partial, loaded.processor, loaded.companions)
        (partial / "adapt.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        checkpoint.verify_reload(adapted, partial)

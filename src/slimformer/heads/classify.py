"""From any model and labelled data to a classifier, in one pass: features, heads, the best reading, honest scores.

This is the command `slimformer probe`, and what gives a compressed model a fresh head. Features are not kept in memory;
every reading (pooling, layer) has its own head, all of them fed by the same pass, and leave-one-out loss chooses among
them on the training data alone. Newton steps need the features again: for them they wait in a temporary file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.documents import Document
from slimformer.calibrate.images import read_images
from slimformer.calibrate.splits import split_documents
from slimformer.calibrate.stream import require_labels, stream_documents
from slimformer.calibrate.tasks import Purpose, read_data
from slimformer.calibrate.text import Batch
from slimformer.errors import DataUnreadable, HeadDoesNotFit, RowsUnusable
from slimformer.evaluate.perplexity import evaluating
from slimformer.evaluate.predictions import classification_scores, regression_scores
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.attach import attach, last_layer, put_head
from slimformer.heads.features import Chunk, Features, Reading, batches_of, feature_chunks, readings_of
from slimformer.heads.parameters import HeadParameters
from slimformer.heads.waiting_rows import waiting_rows
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import describe, family_of
from slimformer.models.architecture import is_bare, reads_examples
from slimformer.models.load import Loaded

FORMAT = 1
FEATURES, HEAD = Features(), HeadParameters()  # as usual
LOOKED_AT = 256  # labels that tell classes from numbers


@dataclass(frozen=True)
class Probed:
    """The best head, where its features are read, and what is known of it."""

    head: AnalyticHead
    reading: Reading
    report: dict[str, Any]


@dataclass(frozen=True)
class LabelledRows:
    """Where labelled rows are: a table, the name of a data set or a folder of images; and which of them are read."""

    source: str | Path
    columns: Sequence[str] | None = None
    label: str | None = None
    samples: int | None = None
    seed: int = 0
    split: Purpose = "calibration"


def labelled(loaded: Loaded, rows: LabelledRows) -> Iterator[Document]:
    """Labelled documents, one at a time: rows of a table, or images in a folder for each class."""
    if family_of(loaded.model.config).image:
        documents: Iterable[Document] = read_images(rows.source, samples=rows.samples, seed=rows.seed)
    elif loaded.processor is None:
        raise DataUnreadable("there is no tokenizer with the model, so it cannot read text")
    else:
        documents = stream_documents(
            rows.source, columns=rows.columns, label=rows.label, split=rows.split, limit=rows.samples
        )
    return require_labels(iter(documents), str(rows.source))


def target_of(documents: Iterator[Document], name: str) -> tuple[str, Iterator[Document]]:
    """Classes or numbers: labels with a fraction are numbers. Gives the documents back whole."""
    first = list(islice(documents, LOOKED_AT))
    whole = chain(first, documents)
    if name != "auto":
        return name, whole
    try:
        values = [float(d.label) for d in first if d.label is not None]
    except ValueError:
        return "classes", whole
    return ("classes" if all(value.is_integer() for value in values) else "numbers"), whole


def probe(
    loaded: Loaded,
    train: Iterator[Document],
    features: Features = FEATURES,
    *,
    target: str = "auto",
    head: HeadParameters = HEAD,
    progress: Progress = silent,
) -> Probed:
    """Fit a head for every reading in one pass over `train`, and take the one with the least leave-one-out loss.

    `target` is that of the head, or auto: by the labels. Cost: one forward pass and, for each reading, d² / 2 per
    document and one d³. Kind "newton" chooses the reading by its start, and writes 4 d bytes per document and reading
    to a temporary file.
    """
    n_blocks = describe(loaded.model).n_layers
    strange = [layer for layer in features.layers if not 1 <= layer <= n_blocks]
    if strange:
        raise HeadDoesNotFit(f"there is no layer {strange[0]}; the model has layers 1 to {n_blocks}")
    target, train = target_of(train, target)
    kind, seq_len, compare = kind_for(target, head.kind), features.seq_len, features.compare
    readings = readings_of(loaded.model, features.pools, features.layers)
    params = {**head.get_params(), "kind": kind, "target": target}
    heads = {reading: AnalyticHead(**params) for reading in readings}
    steps = {reading: head.steps for reading, head in heads.items()} if kind == "newton" else {}
    rows = 0
    with waiting_rows(steps) as waiting:
        for reading in steps:
            heads[reading].set_params(steps=0)  # the readings are compared by where the steps start
        for chunk in feature_chunks(
            loaded.model, loaded.processor, train, readings, seq_len=seq_len, compare=compare
        ):  # fmt: skip
            for reading, each in heads.items():
                each.partial_fit(chunk.features[reading], targets(chunk, target))
            for reading, file in waiting.items():
                file.append(chunk.features[reading], targets(chunk, target))
            rows += len(chunk.labels)
            progress("features", rows, rows)
        _require_two(heads[readings[0]])
        best, tried = _best(heads, progress)
        if best in waiting:
            progress("Newton steps", 0, 1)
            heads[best].set_params(steps=steps[best]).polish(waiting[best])
            progress("Newton steps", 1, 1)
    report = {
        "slimformer_probe": FORMAT, "model": loaded.name, "kind": kind, "target": target, "rows": rows,
        "seq_len": seq_len, "compare": compare, "causal": family_of(loaded.model.config).causal,
        "reading": vars(best), "tried": tried,
        "classes": heads[best].classes_.tolist() if target == "classes" else None,
    }  # fmt: skip
    if kind == "newton":
        report |= {"newton": {"steps": heads[best].n_iter_, **left_out(heads[best])}}
    return Probed(heads[best], best, report)


def kind_for(target: str, kind: str) -> str:
    """Numbers are regressed whatever kind of classifier was meant."""
    return "ridge" if target == "numbers" and kind in ("lda", "ncm", "newton") else kind


def _best(heads: dict[Reading, AnalyticHead], progress: Progress) -> tuple[Reading, list[dict[str, Any]]]:
    """The reading of least leave-one-out loss, and what every one of them reached."""
    tried = []
    for i, (reading, head) in enumerate(heads.items()):
        progress("solve", i, len(heads))
        tried.append({**vars(reading), **left_out(head)})
    progress("solve", len(heads), len(heads))
    best = min(range(len(tried)), key=lambda i: (tried[i]["loss"] is None, tried[i]["loss"] or 0.0))
    return list(heads)[best], tried


def left_out(head: AnalyticHead) -> dict[str, float | None]:
    """How rows fare that are left out, and the shrinkage chosen; no loss where a class has but one row to leave out."""
    loss = head.loo_loss_
    finite = loss if loss is not None and math.isfinite(loss) else None
    return {"loss": finite, "error": head.loo_error_, "shrinkage": head.shrinkage_}


def _require_two(head: AnalyticHead) -> None:
    if head.target == "classes" and len(head.classes_) < 2:
        raise RowsUnusable(f"all rows have the label {str(head.classes_[0])!r}; a classifier needs two classes or more")


def targets(chunk: Chunk, target: str) -> Any:
    """Labels of a chunk: names for classes, floats for numbers."""
    if target == "classes":
        return np.array([str(label) for label in chunk.labels])
    try:
        return np.array([float(label) for label in chunk.labels])  # type: ignore[arg-type]
    except ValueError as error:
        raise DataUnreadable(f"a label is no number ({error}); use {option('target', 'classes')}") from None


def score(
    loaded: Loaded, probed: Probed, documents: Iterator[Document], *, progress: Progress = silent
) -> dict[str, Any]:
    """The head on data it has not seen: accuracy, F1, calibration, confusion; or correlations."""
    head, target = probed.head, probed.report["target"]
    truth, predicted, sure = [], [], []
    for chunk in feature_chunks(
        loaded.model, loaded.processor, documents, [probed.reading],
        seq_len=probed.report["seq_len"], compare=probed.report["compare"],
    ):  # fmt: skip
        X = chunk.features[probed.reading]
        truth.append(targets(chunk, target))
        predicted.append(head.predict(X))
        if target == "classes":
            sure.append(head.predict_proba(X))
        progress("evaluate", sum(map(len, truth)), sum(map(len, truth)))
    y, p = np.concatenate(truth), np.concatenate(predicted)
    if target == "numbers":
        return regression_scores(y, p)
    return classification_scores(y, p, np.concatenate(sure), head.classes_.tolist())


def seen_before(train: str, held_out: str) -> list[str]:
    """A note where a file or folder is to be scored on that the head was fitted on."""
    known = [Path(name) for name in (train, held_out)]
    same = all(path.exists() for path in known) and known[0].samefile(known[1])
    return [f"{held_out} is what the head was fitted on: these are not held-out figures"] if same else []


def padding(processor: Any) -> int | None:
    """The id that a classifier of a decoder takes as padding."""
    ids = (getattr(processor, "pad_token_id", None), getattr(processor, "eos_token_id", None))
    return next((i for i in ids if i is not None), None)


def fresh_head(
    loaded: Loaded,
    model: PreTrainedModel,
    documents: Iterator[Document],
    *,
    kind: str = "lda",
    seq_len: int = 128,
    progress: Progress = silent,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """`model` with a head fitted on its own features: a classifier gets new weights in its last layer, an encoder
    without a head becomes a classifier. The model given is changed.
    """
    here = replace(loaded, model=model)
    if is_bare(model):
        wanted = ("last",) if family_of(model.config).causal else ("cls",)
        features = Features(wanted, seq_len=seq_len)
        probed = probe(here, documents, features, head=HeadParameters(kind), progress=progress)
        return attach(model, probed.head, probed.reading, pad=padding(loaded.processor)), probed.report
    if family_of(model.config).causal and model.config.pad_token_id is None:
        model.config.pad_token_id = padding(loaded.processor)  # else a decoder cannot tell where rows end
    config: Any = model.config
    names = [config.id2label[i] for i in range(config.num_labels)]
    target = "numbers" if len(names) == 1 else "classes"
    head = AnalyticHead(kind_for(target, kind), target=target)
    rows = 0
    with waiting_rows(["last"] if head.kind == "newton" else []) as waiting:
        for part in _parts(documents, 512):
            if target == "classes":
                y: Any = [_class_number(document.label, names) for document in part]
            else:
                y = [float(document.label) for document in part]  # type: ignore[arg-type]
            X = last_features(here, part, seq_len)
            head.partial_fit(X, y, classes=range(len(names)) if target == "classes" else None)
            for file in waiting.values():
                file.append(X, y)
            rows += len(part)
            progress("head", rows, rows)
        for file in waiting.values():
            head.polish(file)
    put_head(model, head)
    report = {"slimformer_probe": FORMAT, "kind": head.kind, "target": target, "rows": rows, "seq_len": seq_len}
    return model, {**report, **left_out(head)}


def last_features(loaded: Loaded, documents: Sequence[Document], seq_len: int) -> Any:
    """What the last layer of a classifier is given, in the order of the documents: its logits with no last layer."""
    model: Any = loaded.model
    numbered = [replace(document, label=i) for i, document in enumerate(documents)]
    with _without_last_layer(model), evaluating(model):
        parts = [
            (batch.labels, _logits(model, batch)) for batch in batches_of(model, loaded.processor, numbered, seq_len)
        ]
    order = torch.cat([numbers for numbers, _ in parts if numbers is not None]).argsort()
    return torch.cat([features for _, features in parts])[order]


def _logits(model: Any, batch: Batch) -> Any:
    return model(**replace(batch, labels=None).to(model.device).inputs).logits.float().cpu()


@contextmanager
def _without_last_layer(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block the model gives what its last layer would be given."""
    path, name = last_layer(model).rpartition(".")[::2]
    parent = model.get_submodule(path)
    layer = getattr(parent, name)
    setattr(parent, name, nn.Identity())
    try:
        yield
    finally:
        setattr(parent, name, layer)


def _class_number(label: Any, names: Sequence[str]) -> int:
    """The number of a class, by its name or by its number."""
    name = str(label)
    if name in names:
        return names.index(name)
    if name.isdigit() and int(name) < len(names):
        return int(name)
    raise DataUnreadable(f"the label {name!r} is none of the classes of the model: {', '.join(names[:10])}")


def _parts(documents: Iterator[Document], size: int) -> Iterator[list[Document]]:
    while part := list(islice(documents, size)):
        yield part


def require_headroom(model: PreTrainedModel) -> None:
    """Refuse, before the long work, a fresh head where there is no place for it."""
    if not is_bare(model):
        last_layer(model)


def held_out_texts(
    data: Any, loaded: Loaded, *, columns: Sequence[str] | None, samples: int | None, seed: int
) -> set[tuple[str, str | None]]:
    """What the report and certify splits of `data` hold: a fresh head must not be fitted on it."""
    if isinstance(data, Tensor):
        return set()
    family = family_of(loaded.model.config)
    if family.image:
        documents = read_images(data, samples=samples, seed=seed)
    else:
        documents = read_data(data, columns=columns, limit=samples, rows=reads_examples(loaded.model, family))
    parts = split_documents(documents, seed=seed)
    return {(document.text, document.pair) for part in ("report", "certify") for document in parts[part]}

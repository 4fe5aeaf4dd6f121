"""GLUE (Wang et al. 2019): what each task counts, and predictions of classifiers, regressors and headless encoders.

A model with a head for whole sequences predicts its class with the largest logit, or its one number. An encoder without
a head is compared with by the cosine of mean-pooled last states: the similarity itself for STS-B, and for pairs with
two classes "is it above a threshold?", the threshold being the one that is best on other, labelled pairs for the dense
model, and the same for the small one: who takes the small model's embeddings leaves everything after them as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slimformer.calibrate.documents import Document, Label
from slimformer.calibrate.text import Batch, padded_batches
from slimformer.checkpoint.sentence import MEAN, Pooling, pooled
from slimformer.errors import DataUnreadable, PlanDoesNotFit
from slimformer.evaluate.perplexity import device_of, evaluating
from slimformer.evaluate.scores import Score, Vector, accuracy_score, f1_score, pearson, spearman
from slimformer.linalg.precision import to_double


@dataclass(frozen=True)
class Glue:
    """Names of the scores with their functions; names of the classes in the order of their numbers, none for numbers.

    `pairs` tells whether two texts are compared; `alike` is the class of pairs that mean the same, if there is one.
    """

    scores: Mapping[str, Score]
    classes: tuple[str, ...]
    pairs: bool = True
    alike: int | None = None


ACCURACY = {"accuracy": accuracy_score}
BOTH = {"accuracy": accuracy_score, "F1": f1_score}
GLUE: dict[str, Glue] = {
    "sst2": Glue(ACCURACY, ("negative", "positive"), pairs=False),
    "mnli": Glue(ACCURACY, ("entailment", "neutral", "contradiction")),
    "qnli": Glue(ACCURACY, ("entailment", "not_entailment")),
    "qqp": Glue(BOTH, ("not_duplicate", "duplicate"), alike=1),
    "mrpc": Glue(BOTH, ("not_equivalent", "equivalent"), alike=1),
    "stsb": Glue({"Pearson": pearson, "Spearman": spearman}, ()),
}
GLUE["sts"] = GLUE["stsb"]


def golds_of(task: Glue, documents: Sequence[Document]) -> Vector:
    """Labels as numbers: classes in the order of GLUE, or scores. Hidden ones (none, −1, "-") are refused."""
    numbers = {name: float(i) for i, name in enumerate(task.classes)}
    values = [_number(document.label, numbers) for document in documents]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        odd = sorted({str(d.label) for d, value in zip(documents, values, strict=True) if value is None})[:3]
        raise DataUnreadable(
            f"{len(values) - len(known)} of {len(values)} examples have no label of this task (found: "
            f"{', '.join(odd)}); give a labelled part, usually the development set"
        )
    return np.array(known)


def _number(label: Label, numbers: Mapping[str, float]) -> float | None:
    if isinstance(label, str):
        return numbers.get(label.strip().lower().replace(" ", "_"))
    if label is None or label < 0 or (numbers and (label >= len(numbers) or label != int(label))):
        return None
    return float(label)


def labelled(task: Glue, documents: Sequence[Document]) -> list[Document]:
    """Without the examples on which the annotators of MNLI did not agree, which the benchmark leaves out too."""
    return [document for document in documents if not (task.classes and document.label == "-")]


def class_order(task: Glue, model: Any) -> list[int]:
    """For every class of the model the one of GLUE it stands for: by name, or by number where it has no names.

    A classifier whose classes are called otherwise was trained on something else, and its scores would mean nothing.
    """
    names = class_names(model)
    if int(model.config.num_labels) != len(task.classes):
        raise PlanDoesNotFit(
            f"the model tells {model.config.num_labels} classes apart and the task has {len(task.classes)}; "
            "evaluate a model that was trained on it"
        )
    if unnamed(model):
        return list(range(len(task.classes)))
    if set(names.values()) != set(task.classes):
        raise PlanDoesNotFit(
            f"the model tells {', '.join(names.values())} apart and the task {', '.join(task.classes)}; evaluate a "
            "model that was trained on it, or correct id2label in its config.json"
        )
    return [task.classes.index(names[i]) for i in range(len(names))]


def class_names(model: Any) -> dict[int, str]:
    """What the config calls its classes, in the spelling of GLUE."""
    names = model.config.id2label or {}
    return {int(i): re.sub(r"[\s-]+", "_", str(name).strip().lower()) for i, name in names.items()}


def unnamed(model: Any) -> bool:
    """Are the classes but numbers, as in LABEL_0?"""
    return all(re.fullmatch(r"(label_?)?\d+", name) for name in class_names(model).values())


def predictions(task: Glue, model: Any, rows: Sequence[Batch]) -> Vector:
    """Classes in the order of GLUE, or numbers, document by document. Cost: one forward pass."""
    order = torch.tensor(class_order(task, model)) if task.classes else None  # refused before the long work
    logits = _in_order(list(_logits(model, rows)), rows)
    if order is None:
        if logits.shape[1] != 1:
            raise PlanDoesNotFit(
                f"the model tells {logits.shape[1]} classes apart and the task asks for a number; "
                "evaluate a model that was trained on it"
            )
        return np.asarray(logits[:, 0].numpy(), dtype=np.float64)
    return np.asarray(order[logits.argmax(1)].numpy(), dtype=np.float64)


def rows_of(texts: Sequence[Document], tokenizer: Any, *, seq_len: int, batch_size: int) -> list[Batch]:
    """One row for every document; the labels of the batches are the numbers of the documents."""
    numbered = [replace(document, label=i) for i, document in enumerate(texts)]
    rows = padded_batches(numbered, tokenizer, seq_len=seq_len, batch_size=batch_size)
    count = sum(len(next(iter(batch.inputs.values()))) for batch in rows)
    if count < len(texts):
        raise DataUnreadable(f"{len(texts) - count} of {len(texts)} texts are empty to the tokenizer; leave them out")
    return rows


def _in_order(values: Sequence[Tensor], rows: Sequence[Batch]) -> Tensor:
    """Values of the rows in the order of the documents: batches hold rows of like length, in any order."""
    index = torch.cat([batch.labels for batch in rows if batch.labels is not None])
    stacked = torch.cat(list(values))
    out = torch.empty_like(stacked)
    out[index] = stacked
    return out


def _logits(model: nn.Module, rows: Sequence[Batch]) -> Iterator[Tensor]:
    with evaluating(model):
        for batch in rows:
            yield model(**batch.to(device_of(model)).inputs).logits.to("cpu", torch.float64)


def embeddings(model: nn.Module, rows: Sequence[Batch], how: Pooling = MEAN) -> Tensor:
    """Embeddings of length 1, document by document: means of the last states at real positions, or as the folder of
    the model pools them. Cost: one forward pass."""
    out = []
    with evaluating(model):
        for batch in rows:
            here = batch.to(device_of(model))
            states = to_double(model(**here.inputs).last_hidden_state)
            real = torch.ones_like(states[..., 0]) if here.mask is None else here.mask.to(states)
            out.append(pooled(states, real, how).cpu())
    return torch.nn.functional.normalize(_in_order(out, rows), dim=1)


def similarities(model: nn.Module, first: Sequence[Batch], second: Sequence[Batch], how: Pooling = MEAN) -> Vector:
    """Cosines of the embeddings of two lists of texts, pair by pair."""
    x, y = (embeddings(model, rows, how) for rows in (first, second))
    return np.asarray((x * y).sum(1).numpy(), dtype=np.float64)


def reciprocal_ranks(queries: Tensor, texts: Tensor, own: Sequence[int]) -> Vector:
    """For every query 1 / the place of its own text among all texts, the most similar first. Equal ones come before."""
    S = queries @ texts.mT
    right = S.gather(1, torch.tensor(own)[:, None])
    return np.asarray((1.0 / (right <= S).sum(1)).numpy(), dtype=np.float64)


def best_cut(values: Vector, golds: Vector, score: Score = accuracy_score) -> float:
    """The threshold above which "alike" is said with the best score; between two neighbouring values. Cost O(n²)."""
    order = np.unique(values)
    cuts = np.concatenate([[order[0] - 1], (order[1:] + order[:-1]) / 2])
    return float(max(cuts, key=lambda cut: score((values > cut).astype(np.float64), golds)))

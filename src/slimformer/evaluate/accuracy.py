"""Accuracy of a classifier: the share of examples whose largest logit is the label."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from slimformer.calibrate.text import Batch
from slimformer.evaluate.perplexity import evaluating, pieces
from slimformer.evaluate.units import Tally


@dataclass(frozen=True)
class Accuracy:
    """`value` = mean of `correct`, which keeps the order of the examples so that two models can be paired.

    By document, if several examples are of one: the share that is correct, and the number of examples.
    """

    value: float
    examples: int
    correct: tuple[float, ...]
    share_per_document: tuple[float, ...]
    examples_per_document: tuple[int, ...]


def accuracy(model: nn.Module, batches: Iterable[Batch]) -> Accuracy:
    """(1/n) Σ [argmax_c logits = label] over labelled examples."""
    return _share(model, batches, lambda output, part: _correct(output.logits, part.labels))


def matches(model: nn.Module, batches: Iterable[Batch]) -> Accuracy:
    """Of two towers: the share of images and texts whose own partner scores highest of those of their batch, a pair
    counted as right by halves."""
    return _share(model, batches, lambda output, _: (_own(output.logits_per_image) + _own(output.logits_per_text)) / 2)


def _share(model: nn.Module, batches: Iterable[Batch], right_of: Callable[[Any, Batch], Tensor]) -> Accuracy:
    correct: list[float] = []
    by_document = Tally()
    with evaluating(model):
        for batch in batches:
            for part in pieces(model, batch):
                right = right_of(model(**part.inputs), part).cpu()
                correct += right.tolist()
                columns = torch.stack([right, torch.ones_like(right)], 1).double()
                by_document.add(by_document.main_documents(part), columns)
    if not correct:
        raise ValueError("there are no examples to measure accuracy on")
    share, count = by_document.table().T
    each = (tuple((share / count).tolist()), tuple(count.long().tolist()))
    return Accuracy(sum(correct) / len(correct), len(correct), tuple(correct), *each)


def _own(scores: Tensor) -> Tensor:
    return (scores.argmax(1) == torch.arange(len(scores), device=scores.device)).double()


def _correct(logits: Tensor, labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ValueError("accuracy needs batches with labels")
    if logits.ndim != 2 or logits.shape[1] < 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"accuracy needs one row of class scores and one label for each example, "
            f"not logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        )
    strange = labels[(labels < 0) | (labels >= logits.shape[1])].unique().tolist()
    if strange:  # GLUE writes −1 for labels it keeps to itself; they would silently count as mistakes
        raise ValueError(f"labels {strange} are not among the {logits.shape[1]} classes of the model")
    return logits.argmax(1) == labels

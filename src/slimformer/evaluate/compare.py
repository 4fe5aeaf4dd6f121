"""Dense and small side by side on the same data: the metrics that fit the kind of model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.evaluate.accuracy import accuracy, matches
from slimformer.evaluate.fidelity import Divergence, logit_divergence, output_change, state_similarity
from slimformer.evaluate.intervals import (
    paired_difference,
    paired_shares,
    positive_interval,
    share_interval,
    smooth_interval,
)
from slimformer.evaluate.language import language_pair
from slimformer.models.architecture import is_bare
from slimformer.models.families import family_of

KL_TOKENS = 4096  # whole vocabularies are compared, so a few thousand positions of all documents say enough


@dataclass(frozen=True)
class Metric:
    """One number before and after; `low` and `high` bound the difference small − dense (95 %, paired; `intervals`).

    `documents` is the number of independent ones it rests on (texts, rows of a table, images): with a single one there
    is no interval. `on` is the number of tokens it was measured on, where these were not all.
    """

    name: str
    dense: float | None
    small: float
    better: str  # "lower" or "higher"
    low: float | None = None
    high: float | None = None
    on: int | None = None
    documents: int | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def compare(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> list[Metric]:
    """Perplexity and KL for language models, accuracy and KL for classifiers, cosine and CKA for headless encoders."""
    if family_of(dense.config).towers:
        return [*_matches(dense, small, batches), *_divergence(dense, small, batches)]
    if is_bare(dense):
        return _states(dense, small, batches)
    if regresses(dense):
        return [_change(dense, small, batches)]
    if is_language_model(dense):
        return _language(dense, small, batches)
    metrics = []
    if classifies(dense) and all(has_classes(dense, batch.labels) for batch in batches):
        metrics = _accuracy(dense, small, batches)
    return [*metrics, *_divergence(dense, small, batches)]


def is_language_model(model: PreTrainedModel) -> bool:
    """Does the model predict the next token?"""
    return bool(model.can_generate()) and model.get_output_embeddings() is not None


def classifies(model: PreTrainedModel) -> bool:
    """Does it give one row of numbers for a whole text or image?"""
    return type(model).__name__.endswith(("SequenceClassification", "ImageClassification"))


def regresses(model: PreTrainedModel) -> bool:
    """Is that row one number?"""
    return classifies(model) and model.config.num_labels == 1


def _change(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> Metric:
    """Σ ‖x − y‖² / Σ ‖x‖² of the outputs, a ratio of sums: documents with larger outputs weigh more."""
    moved, size = output_change(dense, small, batches)
    gap = bounds(positive_interval, [m / n for m, n in zip(moved, size, strict=True)], size)
    name = "relative squared change of the output"
    return Metric(name, 0.0, math.fsum(moved) / math.fsum(size), "lower", *gap, documents=len(size))


def has_classes(model: PreTrainedModel, labels: Tensor | None) -> bool:
    """Does every example carry one of the model's classes? GLUE writes −1 where it keeps the label to itself."""
    if labels is None or labels.is_floating_point():
        return False
    return 0 <= int(labels.min()) <= int(labels.max()) < int(model.config.num_labels or 0)


def first_tokens(batches: Sequence[Batch], tokens: int) -> list[Batch]:
    """The first batches that hold that many tokens together, or all."""
    out: list[Batch] = []
    for batch in batches:
        if sum(chosen.tokens for chosen in out) >= tokens:
            break
        out.append(batch)
    return out


def _divergence(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> list[Metric]:
    part = batches if not _outcomes(dense) or classifies(dense) else first_tokens(batches, KL_TOKENS)
    on = sum(batch.tokens for batch in part) if len(part) < len(batches) else None
    return divergence_metrics(logit_divergence(dense, small, part), on, dense)


def divergence_metrics(divergence: Divergence, on: int | None, dense: PreTrainedModel) -> list[Metric]:
    """KL has no upper bound, but a model that guesses evenly is log C away at most: beyond that, and beyond what any
    document shows, an interval over few documents says nothing."""
    n, documents = divergence.positions_per_document, len(divergence.positions_per_document)
    outcomes = _outcomes(dense)
    most = max(math.log(outcomes), *divergence.kl_per_document) if outcomes else math.inf
    apart = clipped(bounds(positive_interval, divergence.kl_per_document, n), 0.0, most)
    alike = bounds(share_interval, divergence.agreement_per_document, n, shift=-1.0)
    return [
        Metric("kl", 0.0, divergence.kl, "lower", *apart, on=on, documents=documents),
        Metric("agreement", 1.0, divergence.agreement, "higher", *alike, on=on, documents=documents),
    ]


def _outcomes(model: PreTrainedModel) -> int:
    """How many outcomes a model gives probabilities of; 0 where that changes from row to row."""
    table: Any = None if family_of(model.config).towers else model.get_output_embeddings()
    if table is not None:
        return len(table.weight)
    classes = type(model).__name__.endswith("Classification")
    return int(model.config.num_labels or 0) if classes else 0


def _language(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> list[Metric]:
    stride = max(1, sum(batch.tokens for batch in batches) // KL_TOKENS)
    before, after, apart = language_pair(dense, small, batches, stride=stride)
    n, pairs = before.tokens_per_document, (before.nll_per_document, after.nll_per_document)
    gap = bounds(partial(paired_difference, pairs[0]), pairs[1], n)
    return [
        Metric("perplexity", before.ppl, after.ppl, "lower", *_as_perplexity(before.ppl, gap), documents=len(n)),
        Metric("nats per token", before.nll, after.nll, "lower", *gap, documents=len(n)),
        *divergence_metrics(apart, apart.positions if stride > 1 else None, dense),
    ]


def _as_perplexity(dense: float, nats: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    """Bounds of the gap in perplexity from those of the gap g in nats, dense · (e^g − 1).

    Both then have the same sign: no row says that a model is surely worse and that it may be better. What is bounded is
    the ratio of the two perplexities; how hard other texts are to both is not in it."""
    low, high = nats
    if low is None or high is None:
        return None, None
    return dense * math.expm1(min(low, 700.0)), dense * math.expm1(min(high, 700.0))


def _accuracy(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> list[Metric]:
    before, after = accuracy(dense, batches), accuracy(small, batches)
    n = before.examples_per_document
    gap = bounds(partial(paired_shares, before.share_per_document), after.share_per_document, n)
    return [Metric("accuracy", before.value, after.value, "higher", *gap, documents=len(n))]


def _matches(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> list[Metric]:
    """Images and texts whose own partner is the likeliest of their batch."""
    before, after = (matches(model, batches) for model in (dense, small))
    n = before.examples_per_document
    gap = bounds(partial(paired_shares, before.share_per_document), after.share_per_document, n)
    return [Metric("matches", before.value, after.value, "higher", *gap, documents=len(n))]


def _states(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> list[Metric]:
    similarity = state_similarity(dense, small, batches)
    documents = len(similarity.tokens_per_document)
    metrics = []
    for name, value, cosines, n in (
        ("pooled", similarity.cosine_pooled, similarity.pooled_per_document, similarity.rows_per_document),
        ("token", similarity.cosine_token, similarity.token_per_document, similarity.tokens_per_document),
    ):
        if value is not None:
            low, high = clipped(bounds(positive_interval, [max(0.0, 1 - each) for each in cosines], n), 0.0, 2.0)
            metrics.append(Metric(f"cosine of {name} states", 1.0, value, "higher", *turned(low, high)))
    moves = [-similarity.cka * each for each in similarity.influence_per_document]
    apart = partial(smooth_interval, 1 - similarity.cka, positive=True)
    low, high = clipped(bounds(apart, moves, similarity.tokens_per_document), 0.0, 1.0)
    metrics.append(Metric("cka", 1.0, similarity.cka, "higher", *turned(low, high)))
    if near := similarity.neighbours_per_document:  # the interval is over who asks; whom they find stays the same
        lost = [1 - each for each in near]
        low, high = clipped(bounds(positive_interval, lost, [1] * len(lost)), 0.0, 1.0)
        metrics.append(Metric("neighbour overlap", 1.0, sum(near) / len(near), "higher", *turned(low, high)))
    return [replace(metric, documents=documents) for metric in metrics]


def bounds(
    interval: Callable[..., Any], values: Sequence[float], weights: Sequence[float], *, shift: float = 0.0
) -> tuple[float | None, float | None]:
    """Bounds of the difference; none when there is a single document, or a value that no interval has."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None, None
    bounds = interval(values, weights=weights)
    return bounds.low + shift, bounds.high + shift


def clipped(bounds: tuple[float | None, float | None], least: float, most: float) -> tuple[float | None, float | None]:
    """Bounds within what a number can be."""
    low, high = bounds
    return (None, None) if low is None or high is None else (max(low, least), min(high, most))


def turned(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """Bounds of x − 1 from those of 1 − x."""
    return (None, None) if low is None or high is None else (-high, -low)

"""Dense and small side by side on the same data: the metrics that fit the kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.evaluate.accuracy import accuracy
from slimformer.evaluate.fidelity import harm, logit_divergence, state_similarity
from slimformer.evaluate.intervals import paired_difference
from slimformer.evaluate.perplexity import evaluating, perplexity
from slimformer.models.architecture import is_bare

KL_TOKENS = 4096  # whole vocabularies are compared, so a few thousand positions say enough


@dataclass(frozen=True)
class Metric:
    """One number before and after; `low` and `high` bound the difference small − dense (95 %, paired bootstrap).

    `on` is the number of tokens it was measured on, where these were not all.
    """

    name: str
    dense: float | None
    small: float
    better: str  # "lower" or "higher"
    low: float | None = None
    high: float | None = None
    on: int | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def compare(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch], *, seed: int = 0) -> list[Metric]:
    """Perplexity and KL for language models, accuracy and KL for classifiers, cosine and CKA for bare encoders."""
    if is_bare(dense):
        return _states(dense, small, batches)
    if _regresses(dense):
        return [Metric("relative squared change of the output", 0.0, _change(dense, small, batches), "lower")]
    metrics = []
    if is_language_model(dense):
        metrics = _perplexity(dense, small, batches, seed)
    elif _classifies(dense) and _has_classes(dense, batches):
        metrics = _accuracy(dense, small, batches, seed)
    return [*metrics, *_divergence(dense, small, batches)]


def is_language_model(model: PreTrainedModel) -> bool:
    """Does the model predict the next token?"""
    return bool(model.can_generate()) and model.get_output_embeddings() is not None


def _classifies(model: PreTrainedModel) -> bool:
    return type(model).__name__.endswith(("SequenceClassification", "ImageClassification"))


def _regresses(model: PreTrainedModel) -> bool:
    return _classifies(model) and model.config.num_labels == 1


@torch.no_grad()
def _change(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> float:
    total = count = 0.0
    with evaluating(dense, small):
        for batch in batches:
            here = batch.to(dense.device)
            moved, n = harm(dense(**here.inputs), small(**here.inputs), here.mask)
            total, count = total + moved * n, count + n
    return total / count


def _has_classes(model: PreTrainedModel, batches: Sequence[Batch]) -> bool:
    """Does every example carry one of the model's classes? GLUE writes −1 where it keeps the label to itself."""
    labels = [batch.labels for batch in batches]
    classes = int(model.config.num_labels or 0)
    return all(
        part is not None and not part.is_floating_point() and 0 <= int(part.min()) <= int(part.max()) < classes
        for part in labels
    )


def first_tokens(batches: Sequence[Batch], tokens: int) -> list[Batch]:
    """The first batches that hold that many tokens together, or all."""
    out: list[Batch] = []
    for batch in batches:
        if sum(chosen.tokens for chosen in out) >= tokens:
            break
        out.append(batch)
    return out


def _divergence(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> list[Metric]:
    part = batches if dense.get_output_embeddings() is None else first_tokens(batches, KL_TOKENS)
    on = sum(batch.tokens for batch in part) if len(part) < len(batches) else None
    found = logit_divergence(dense, small, part)
    return [
        Metric("kl", 0.0, found.kl, "lower", on=on),
        Metric("agreement", 1.0, found.agreement, "higher", on=on),
    ]


def _perplexity(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch], seed: int) -> list[Metric]:
    before, after = perplexity(dense, batches), perplexity(small, batches)
    gap = _interval(before.nll_per_window, after.nll_per_window, before.tokens_per_window, seed)
    return [
        Metric("perplexity", before.ppl, after.ppl, "lower"),
        Metric("nats per token", before.nll, after.nll, "lower", *gap),
    ]


def _accuracy(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch], seed: int) -> list[Metric]:
    before, after = accuracy(dense, batches), accuracy(small, batches)
    gap = _interval(before.correct, after.correct, None, seed)
    return [Metric("accuracy", before.value, after.value, "higher", *gap)]


def _interval(
    before: Sequence[float], after: Sequence[float], weights: Sequence[float] | None, seed: int
) -> tuple[float | None, float | None]:
    """Bounds of the difference; none when there is a single example to resample."""
    if len(before) < 2:
        return None, None
    gap = paired_difference([float(x) for x in before], [float(x) for x in after], weights=weights, seed=seed)
    return gap.low, gap.high


def _states(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> list[Metric]:
    similarity = state_similarity(dense, small, batches)
    out = [Metric("cka", 1.0, similarity.cka, "higher")]
    if similarity.cosine_pooled is not None and similarity.cosine_token is not None:
        out.insert(0, Metric("cosine of pooled states", 1.0, similarity.cosine_pooled, "higher"))
        out.insert(1, Metric("cosine of token states", 1.0, similarity.cosine_token, "higher"))
    return out

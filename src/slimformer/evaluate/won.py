"""What a model has won between two moments, on text that decided nothing: the loss to the dense model, document by
document, before and after, and the interval of the difference over the same documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.evaluate.compare import KL_TOKENS, first_tokens, regresses
from slimformer.evaluate.fidelity import logit_divergence, output_change, state_similarity
from slimformer.evaluate.intervals import paired_difference
from slimformer.models.architecture import is_bare


@dataclass(frozen=True)
class Losses:
    """The loss of every document, and what each counts for."""

    metric: str
    values: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(v * w for v, w in zip(self.values, self.weights, strict=True)) / sum(self.weights)


def document_losses(dense: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> Losses:
    """KL where there are outcomes, squared change of numbers, 1 − cosine of pooled states: that of reports, for every
    document. Cost: one forward pass of both over some thousand tokens."""
    part = first_tokens(batches, KL_TOKENS)
    if is_bare(dense):
        similarity = state_similarity(dense, small, part)
        apart = tuple(1 - each for each in similarity.pooled_per_document)
        return Losses("1 − cosine of pooled states", apart, similarity.rows_per_document)
    if regresses(dense):
        moved, size = output_change(dense, small, part)
        return Losses("relative squared change", tuple(m / n for m, n in zip(moved, size, strict=True)), tuple(size))
    divergence = logit_divergence(dense, small, part)
    return Losses("KL", divergence.kl_per_document, divergence.positions_per_document)


def losses_by_text(
    dense: PreTrainedModel, small: PreTrainedModel, home: Sequence[Batch], others: Mapping[str, Sequence[Batch]]
) -> dict[str, Losses]:
    """At home, and elsewhere: there every source counts once, however long it is."""
    losses = {"home": document_losses(dense, small, home)}
    there = [document_losses(dense, small, batches) for batches in others.values()]
    if there:
        values = tuple(value for each in there for value in each.values)
        weights = tuple(weight / sum(each.weights) for each in there for weight in each.weights)
        losses["elsewhere"] = Losses(there[0].metric, values, weights)
    return losses


def won(before: Mapping[str, Losses], after: Mapping[str, Losses]) -> dict[str, Any]:
    """By text: the loss before and after, and the 95 % interval of the change; none of a single document."""
    return {name: _change(before[name], after[name]) for name in before}


def _change(before: Losses, after: Losses) -> dict[str, Any]:
    bounds: tuple[float | None, float | None] = (None, None)
    if len(before.values) > 1:
        gap = paired_difference(before.values, after.values, weights=before.weights)
        bounds = gap.low, gap.high
    return {
        "metric": before.metric, "before": before.mean, "after": after.mean, "change": after.mean - before.mean,
        "low": bounds[0], "high": bounds[1], "documents": len(before.values),
    }  # fmt: skip

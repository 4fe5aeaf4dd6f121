"""The divergence of two language models from some of their words, in a fraction of the time.

Where a model is small and its vocabulary large, most of a step of training is the head. With C words that are compared
at every step and N drawn anew out of the R others, each of which then stands for |R| / |N| of its like,

    L = KL(p̃ ‖ q̃),    p̃, q̃ the softmax of the scores of C ∪ N, with log(|R| / |N|) added to those of N

which comes near KL(p ‖ q) as N grows, and is equal to it at N = R. C are the most frequent tokens of the text.

Cost: that of a head with |C| + |N| words. References: Jean et al., "On using very large target vocabulary" (2015);
Bengio, Senécal, "Adaptive importance sampling" (2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.models import describe
from slimformer.models.walk import plain_call

WORTH = 2  # as many words as are compared, at least, or all of them are
DRAWN = 0.25  # of those that are compared
TOLERANCE = 1e-4  # of the largest score


@dataclass(frozen=True)
class Words:
    """All words of a model, those compared at every step first: `common` of them, and `drawn` of the others."""

    order: Tensor
    common: int
    drawn: int

    def some(self, seed: int) -> tuple[Tensor, Tensor]:
        """Which words are compared now, and what is added to the score of each."""
        rest = self.order[self.common :]
        draw = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))[: self.drawn]
        more = torch.zeros(self.common + self.drawn)
        more[self.common :] = math.log(len(rest) / self.drawn)
        return torch.cat([self.order[: self.common], rest[draw]]), more


def words_of(
    teacher: PreTrainedModel, student: PreTrainedModel, batches: Sequence[Batch], compared: int
) -> Words | None:
    """Words to compare a teacher and a student by on these batches; None where that saves little, or where their scores
    do not come from one layer over the vocabulary, which is tried on a few positions."""
    drawn = max(1, int(DRAWN * compared))
    heads = [_head(model) for model in (teacher, student)]
    read = next((name for name in ("decoder_input_ids", "input_ids") if name in batches[0].inputs), None)
    sizes = {head.out_features for head in heads if head is not None}
    if read is None or None in heads or len(sizes) > 1 or sizes.pop() < WORTH * compared:
        return None
    n_words = len(teacher.get_output_embeddings().weight)
    ids = torch.cat([batch.inputs[read].flatten() for batch in batches])
    order = torch.bincount(ids, minlength=n_words).sort(descending=True, stable=True).indices
    words = Words(order, compared - drawn, drawn)
    tried, call = words.some(0)[0], plain_call(describe(teacher))
    return words if all(_scores_alone(model, batches[0], tried, call) for model in (teacher, student)) else None


@contextmanager
def comparing(models: Sequence[PreTrainedModel], words: Tensor) -> Iterator[None]:
    """Let the heads of models give the scores of these words alone."""
    heads: list[Any] = [_head(model) for model in models]
    for head in heads:
        head.forward = _of_words(head, words.to(head.weight.device))
    try:
        yield
    finally:
        for head in heads:
            del head.forward


def _head(model: PreTrainedModel) -> nn.Linear | None:
    head = model.get_output_embeddings()
    return head if type(head) is nn.Linear and "forward" not in vars(head) else None


def _of_words(head: nn.Linear, words: Tensor) -> Callable[[Tensor], Tensor]:
    weight, bias = head.weight[words], None if head.bias is None else head.bias[words]
    return lambda states: nn.functional.linear(states, weight, bias)


@torch.no_grad()
def _scores_alone(model: PreTrainedModel, batch: Batch, words: Tensor, call: Mapping[str, Any]) -> bool:
    """Does nothing after the head mix the scores of words, or want them all?"""
    here = batch.rows(slice(0, 1)).to(model.device)
    every = model(**here.inputs, **call).logits[..., words.to(model.device)]
    try:
        with comparing([model], words):
            alone = model(**here.inputs, **call).logits
    except (RuntimeError, IndexError):
        return False
    return alone.shape == every.shape and bool((alone - every).abs().max() <= TOLERANCE * every.abs().max())

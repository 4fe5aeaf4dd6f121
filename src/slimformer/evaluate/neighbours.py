"""Nearest neighbours before and after compression: what an encoder finds alike, shown on sentences everybody may read.

Sentences are ours and always the same, so that a report tells nothing of the data. A sentence is the mean of its last
states over real positions; neighbours are those of the largest cosine.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slimformer.evaluate.perplexity import device_of, evaluating

SENTENCES = (
    "The bread is still warm from the oven.",
    "The train to the coast was an hour late.",
    "The court will decide about the contract in spring.",
    "The patient slept well after the operation.",
    "She baked a cake with apples and walnuts.",
    "We missed our connection and waited on the platform.",
    "Both companies signed the agreement on Monday.",
    "The doctor asked her to rest for a week.",
    "Soup tastes better on the second day.",
    "A bus takes you from the station to the beach.",
    "The judge ruled that the clause was void.",
    "A nurse measured his temperature twice.",
)
QUERIES, NEAREST, LENGTH = 4, 3, 32


def neighbours(
    dense: PreTrainedModel,
    small: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    own: PreTrainedTokenizerBase | None = None,
) -> list[dict[str, Any]]:
    """For a few sentences the nearest others, to the dense and to the small model, which may read them by a tokenizer
    of its `own`. Cost: two passes of 12 sentences."""
    models = {"dense": (dense, tokenizer), "small": (small, own or tokenizer)}
    nearest = {name: _nearest(_embedded(*each)) for name, each in models.items()}
    return [{"text": SENTENCES[i], **{name: lists[i] for name, lists in nearest.items()}} for i in range(QUERIES)]


def _nearest(X: Float[Tensor, "n d"]) -> list[list[dict[str, Any]]]:
    cosine = X @ X.mT
    cosine.fill_diagonal_(-torch.inf)
    best = cosine[:QUERIES].topk(NEAREST)
    return [
        [{"text": SENTENCES[j], "cosine": round(c, 6)} for c, j in zip(values, places, strict=True)]
        for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _embedded(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Float[Tensor, "n d"]:
    """Mean last states of unit length, in double precision. One sentence at a time: some tokenizers cannot pad."""
    body: Any = model.base_model
    rows = []
    with evaluating(model):
        for sentence in SENTENCES:
            inputs = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=LENGTH)
            ids = inputs["input_ids"].to(device_of(model))
            rows.append(body(input_ids=ids).last_hidden_state[0].cpu().double().mean(0))
    return normalize(torch.stack(rows), dim=-1)

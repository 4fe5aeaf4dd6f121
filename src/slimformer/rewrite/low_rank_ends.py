"""A model whose embedding, head of words, or both, are given by two thin matrices."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.nn.low_rank_ends import EMBEDDING, end_of, put_rank
from slimformer.rewrite.sizes import state_sizes


@torch.no_grad()
def with_low_rank_ends(model: PreTrainedModel, factors: Mapping[str, tuple[Tensor, Tensor]]) -> PreTrainedModel:
    """A copy whose "embedding" is A[x] B, whose "head" is A (B h) + b, for the A and B of each; what was tied stays so
    where both are given, and is not any longer where one is."""
    out = deepcopy(model)
    tied = is_tied(out)
    for end, (A, B) in factors.items():
        module = end_of(out, end)
        put_rank(module, A.shape[1])
        module.weight.copy_(A)
        module.basis.weight.copy_(B.mT if end == EMBEDDING else B)
        module.basis.requires_grad_(module.weight.requires_grad)
    if tied and len(factors) == 2:
        end_of(out, "head").weight = end_of(out, EMBEDDING).weight
    elif tied:
        out.config.tie_word_embeddings = False
    state_sizes(out, "ragged")
    return out


def is_tied(model: PreTrainedModel) -> bool:
    """Is the head of words the table of the embedding?"""
    head = model.get_output_embeddings()
    return isinstance(head, nn.Module) and head.weight is end_of(model, EMBEDDING).weight

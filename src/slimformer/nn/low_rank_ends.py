"""Tables of words by two thin matrices: an embedding x ↦ A[x] B, a head h ↦ A (B h) + b.

This file travels: behind `nn/ragged.py` it is in `modeling_slimformer.py` of checkpoints that have such ends. It
therefore imports torch and that file only.

A stands where the table stood, under its name, with a row for every token: so what is tied stays tied, biases and
padding are where they were, and whoever counts tokens by rows counts right. B is a linear layer of its own, `basis`, in
the embedding or in the head. How factors are fitted is not the business of this file.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slimformer.nn.ragged import OUTSIDE, pickled

KEY = "ends"  # of the table in config.json: "embedding" and "head", each with its rank
EMBEDDING, HEAD = "embedding", "head"


def end_of(model: Any, end: str) -> Any:
    """The embedding or the head of words; none where the model has none, or is a part of one."""
    try:
        return model.get_input_embeddings() if end == EMBEDDING else model.get_output_embeddings()
    except NotImplementedError:  # it reads no tokens
        return None


def end_ranks(model: Any) -> dict[str, int]:
    """The ends that have a basis, each with its rank."""
    ends = {end: end_of(model, end) for end in (EMBEDDING, HEAD)}
    return {end: int(module.weight.shape[1]) for end, module in ends.items() if hasattr(module, "basis")}


def put_ends(model: Any, ranks: Mapping[str, int]) -> None:
    """Give the ends of a model these ranks; the matrices are left to whoever calls. Twice changes nothing."""
    for end, rank in ranks.items():
        module = end_of(model, end)
        if module is not None and not hasattr(module, "basis"):
            put_rank(module, rank)


def put_rank(end: Any, rank: int) -> None:
    """Let a table have thin rows, and a basis."""
    old = end.weight
    rows, width = old.shape
    embeds = isinstance(end, nn.Embedding)
    end.__class__ = _through_basis(type(end))  # type: ignore[arg-type]
    end.weight = nn.Parameter(old.new_empty(rows, rank), requires_grad=old.requires_grad)
    with torch.device(old.device):
        end.basis = nn.Linear(rank if embeds else width, width if embeds else rank, bias=False).to(old.dtype)
    setattr(end, "embedding_dim" if embeds else "in_features", rank)


@functools.cache
def _through_basis(stock: Any) -> type[nn.Module]:
    """The stock class with a basis behind its rows, or before them."""

    def forward(self: Any, x: Tensor) -> Tensor:
        embeds = isinstance(self, nn.Embedding)
        return self.basis(stock.forward(self, x)) if embeds else stock.forward(self, self.basis(x))

    parts = {"forward": forward, "__module__": __name__, **pickled(_through_basis, stock)}
    return type(stock.__name__, (stock,), parts)


OUTSIDE[KEY] = put_ends

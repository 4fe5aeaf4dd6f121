"""How attention answers to its scores, gathered beside the moments: what `decompose.response` needs of a block.

Queries, keys and values are what the projections gave, turned by the positions the block was called with. A few
queries of a few long sequences are enough, because each of them sees all of its keys and answers in all directions of
the output; of short ones it takes more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.decompose.response import Response, evened, response
from slimformer.decompose.rotary import turned
from slimformer.models import Site
from slimformer.models.architecture import Block, own_rows, weight_of
from slimformer.models.walk import Stream, Visit

SEQUENCES = 8  # of a split at least
POSITIONS = 4096  # and as many sequences as have that many together: sentences and images are short
QUERIES = 32  # of a sequence, evenly spread
WINDOWS = 4  # of queries that are taken together: what comes after the last of them is masked for all, and left out


def sequences_of(length: int) -> int:
    """How many sequences of this length are looked at in a split."""
    return max(SEQUENCES, POSITIONS // max(1, length))


def responding(model: PreTrainedModel, block: Block) -> Site | None:
    """The heads of a block that can be cut by the rank of their scores. Not behind a norm of queries and keys, nor once
    they were, nor where a block has several attentions."""
    if block.ranked is None:
        return None
    attention = model.get_submodule(block.ranked.module)
    return None if hasattr(attention, "ranks") or hasattr(attention, "q_norm") else block.ranked


def projections(heads: Site) -> tuple[str, ...]:
    """The modules whose outputs are queries, keys and values; one where they are fused."""
    return tuple(dict.fromkeys(writer.module for writer in heads.writers))


def block_response(
    visit: Visit, site: Site, outputs: Mapping[str, Tensor], stream: Stream, sequences: int, root: Tensor | None = None
) -> Response | None:
    """The response of the attention with these heads at the first `sequences` of a stream, from the `outputs` of its
    projections, in the metric whose `root` is given."""
    attention: Any = visit.model.get_submodule(site.module)
    causal = visit.architecture.layout(site).causal
    q, k, v = _split(site, outputs)
    q, k, v = (x[:sequences].unflatten(-1, (-1, site.unit)).transpose(1, 2) for x in (q, k, v))
    if site.attention.rotary:
        cos, sin = (x[: len(q)].unsqueeze(1) for x in stream.calls[visit.i]["position_embeddings"])
        q, k = (turned(x, cos, sin) for x in (q, k))
    W_o = weight_of(visit.model.get_submodule(site.reader))
    W_o = _reader(W_o if root is None else root.to(W_o) @ W_o, site.unit)
    total: Response | None = None
    for n in range(len(q)):
        real = torch.arange(q.shape[2]) if stream.rows is None else stream.rows[n].nonzero().flatten().cpu()
        if len(real) > 1:
            answer = _of_sequence(q[n] * float(attention.scaling), k[n], v[n], real, W_o, causal)
            total = answer if total is None else total + answer
    return total


def _reader(W_o: Tensor, width: int) -> Tensor:
    """For every head a triangle as long as its part of W_o, in fewer rows: found once, used for every sequence."""
    parts = W_o.to(torch.promote_types(W_o.dtype, torch.float32)).split(width, dim=1)
    return torch.cat([torch.linalg.qr(part, mode="r").R for part in parts], dim=1)


def _of_sequence(q: Tensor, k: Tensor, v: Tensor, real: Tensor, W_o: Tensor, causal: bool) -> Response:
    chosen = torch.linspace(1 if causal else 0, len(real) - 1, min(QUERIES, len(real) - 1)).round().long().unique()
    total: Response | None = None
    for some in chosen.tensor_split(min(WINDOWS, len(chosen))) if causal else (chosen,):
        seen = real[: int(some[-1]) + 1] if causal else real
        answer = _at(q[:, real[some]], k[:, seen], v[:, seen], some if causal else None, W_o)
        total = answer if total is None else total + answer
    assert total is not None  # there are at least two positions
    return total


def _at(q: Tensor, k: Tensor, v: Tensor, last: Tensor | None, W_o: Tensor) -> Response:
    """The response of some queries; each sees the keys up to its `last`."""
    scores = q @ k.repeat_interleave(len(q) // len(k), 0).mT
    if last is not None:
        after = torch.arange(k.shape[1], device=q.device) > last[:, None].to(q.device)
        scores = scores.masked_fill(after, -torch.inf)
    return response(q, k, v, evened(scores.softmax(-1), scores > -torch.inf), W_o)


def _split(heads: Site, outputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (outputs[writer.module][..., own_rows(heads, writer).flatten()] for writer in heads.writers)
    return q, k, v

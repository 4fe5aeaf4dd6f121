"""Documents to one vector each: the states of a frozen model after some block, pooled over the positions.

Nothing but the pooled vectors of one chunk is ever held, so memory does not depend on the number of documents.

    cls    the state at the first real position (encoders, ViT)
    last   the state at the last real position (decoders: the only one that has read everything)
    mean   the mean over the real positions

States before the last block go through the final norm of the model where it has one: then a model whose later blocks
are dropped computes the very same features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import setitem
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.documents import Document, Label
from slimformer.calibrate.images import image_batches
from slimformer.calibrate.text import Batch, padded_batches
from slimformer.errors import NotFinite
from slimformer.heads.asked import POOLS as POOLS
from slimformer.models import describe, family_of
from slimformer.models.hooks import listening
from slimformer.models.norms import final_norm
from slimformer.models.sample_inputs import require_one_stack

CHUNK = 512  # documents encoded between two updates of the moments; enough to put like lengths together
ROWS = 32  # documents per forward pass


@dataclass(frozen=True)
class Reading:
    """Where features are read: how positions are pooled, and after how many blocks."""

    pool: str
    layer: int

    def __str__(self) -> str:
        return f"{self.pool} of layer {self.layer}"


@dataclass(frozen=True)
class Features:
    """Which features heads are fitted on: poolings and layers to choose from (none: the usual ones of the last layer),
    tokens read of each text, and whether the texts of a pair are encoded apart and compared."""

    pools: Sequence[str] = ()
    layers: Sequence[int] = ()
    seq_len: int = 128
    compare: bool = False


@dataclass(frozen=True)
class Chunk:
    """Features of some documents, in their order, by where they were read."""

    labels: list[Label]
    features: dict[Reading, Tensor]


def readings_of(model: PreTrainedModel, pools: Sequence[str] = (), layers: Sequence[int] = ()) -> list[Reading]:
    """Every combination; by default the customary poolings of the family, after the last block."""
    require_one_stack(model.config, "a head on its states")
    n_blocks = describe(model).n_layers
    return [Reading(p, l) for l in layers or (n_blocks,) for p in pools or usual_pools(model)]


def usual_pools(model: PreTrainedModel) -> tuple[str, ...]:
    """The poolings a family is read by; a decoder's first token has read nothing."""
    family = family_of(model.config)
    if family.image:
        return ("cls",)
    return ("last", "mean") if family.causal else ("cls", "mean")


@torch.no_grad()
def pooled(model: PreTrainedModel, batch: Batch, readings: Sequence[Reading]) -> dict[Reading, Tensor]:
    """Features of one batch, float32 on the CPU. Cost: one forward pass without the head."""
    base: Any = model.base_model
    here = batch.to(model.device)
    blocks = describe(model).blocks
    deepest, states = len(blocks), dict[int, Tensor]()
    inside = {blocks[l].path: partial(setitem, states, l) for l in {r.layer for r in readings} - {deepest}}
    with listening(model, inputs=inside):
        out = base(**here.inputs)
    norm = final_norm(model) or torch.nn.Identity()
    states = {l: norm(state) for l, state in states.items()} | {deepest: out.last_hidden_state}
    features = {r: pool(states[r.layer].float(), here.mask, r.pool).cpu() for r in readings}
    if not all(bool(torch.isfinite(x).all()) for x in features.values()):
        raise NotFinite("the model gives NaN or infinite states for these data, so nothing can be fitted on them")
    return features


def pool(H: Tensor, mask: Tensor | None, how: str) -> Tensor:
    """rows × positions × width to rows × width; masked positions do not count."""
    if mask is None:
        return {"cls": H[:, 0], "last": H[:, -1], "mean": H[:, 1:].mean(1)}[how]
    if how == "mean":
        return (H * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    places = torch.arange(H.shape[1], device=H.device)
    at = places.where(mask, H.shape[1]).amin(1) if how == "cls" else places.where(mask, -1).amax(1)
    return H[torch.arange(len(H), device=H.device), at.clamp(0, H.shape[1] - 1)]


def feature_chunks(
    model: PreTrainedModel,
    processor: Any,
    documents: Iterable[Document],
    readings: Sequence[Reading],
    *,
    seq_len: int = 128,
    compare: bool = False,
) -> Iterator[Chunk]:
    """Features of all documents, a chunk at a time, each chunk in the order of its documents.

    `compare` encodes the two texts of a pair apart, as u and v, and gives |u − v| and u ∘ v (Conneau et al. 2017).
    """
    waiting = iter(documents)
    while part := list(islice(waiting, CHUNK)):
        if compare:
            first = _encode(model, processor, [Document(d.text) for d in part], readings, seq_len)
            second = _encode(model, processor, [Document(d.pair or "") for d in part], readings, seq_len)
            features = {r: torch.cat([(first[r] - second[r]).abs(), first[r] * second[r]], 1) for r in readings}
        else:
            features = _encode(model, processor, part, readings, seq_len)
        yield Chunk([document.label for document in part], features)


def _encode(
    model: PreTrainedModel, processor: Any, part: Sequence[Document], readings: Sequence[Reading], seq_len: int
) -> dict[Reading, Tensor]:
    numbered = [replace(document, label=i) for i, document in enumerate(part)]  # batches come sorted by length
    parts: list[tuple[Tensor, Mapping[Reading, Tensor]]] = []
    for batch in batches_of(model, processor, numbered, seq_len):
        assert batch.labels is not None
        parts.append((batch.labels, pooled(model, replace(batch, labels=None), readings)))
    order = torch.cat([numbers for numbers, _ in parts]).argsort()
    return {r: torch.cat([features[r] for _, features in parts])[order] for r in readings}


def batches_of(model: PreTrainedModel, processor: Any, documents: Sequence[Document], seq_len: int) -> list[Batch]:
    """Rows of text padded to like lengths, or images. A decoder without a padding token reads any id under the mask."""
    config = model.config
    if family_of(config).image:
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        return image_batches(documents, processor, batch_size=ROWS, image_size=size, channels=config.num_channels)
    return padded_batches(documents, processor, seq_len=seq_len, batch_size=ROWS)

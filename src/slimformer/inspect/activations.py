"""Spectra of what flows through every block: second moments of four streams, from one walk over the data.

    attention in     what queries, keys and values are made of       D
    context          what the heads hand to the output projection    h d
    feed-forward in  what the neurons are made of                    D
    neurons          what they hand to the matrix that reads them    F

Singular values are those of the rows X, less their mean (which a bias can absorb), over √n, so that they do not grow
with the data. About zero there is one direction more at most. With fewer tokens than coordinates the last of them are
zero: give several times as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.linalg.moments import Moments
from slimformer.linalg.spectra import effective_rank, gram_values, rank_at, stable_rank
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture
from slimformer.models.architecture import HEADS, NEURONS
from slimformer.models.hooks import Hook, listening
from slimformer.models.walk import Stream, forward, real_rows, rehearse

STREAMS = ("attention in", "context", "feed-forward in", "neurons")


@dataclass(frozen=True)
class BlockActivations:
    """Moments of the four streams of one block."""

    block: int
    moments: dict[str, Moments]


@dataclass(frozen=True)
class StreamSpectrum:
    """One stream: singular values about the mean, and how much of E‖x‖² the mean is."""

    values: Float[Tensor, " d"]
    mean_share: float
    tokens: int

    @classmethod
    def of(cls, moments: Moments) -> StreamSpectrum:
        """Cost O(d³)."""
        whole = float(moments.second(centred=False).diagonal().sum())
        share = float(moments.mean.square().sum()) / whole if whole > 0 else 0.0
        return cls(gram_values(moments.second(centred=True)), share, moments.count)

    def to_json(self) -> dict[str, Any]:
        """Numbers first, as shares of the width; the values themselves last."""
        d = max(1, len(self.values))
        ranks = {f"rank{s}": float(rank_at(self.values, s / 100)) / d for s in (90, 95, 99)}
        return {
            "width": len(self.values),
            "tokens": self.tokens,
            "mean_share": round(self.mean_share, 5),
            "effective_rank": round(float(effective_rank(self.values)) / d, 5),
            "stable_rank": round(float(stable_rank(self.values)) / d, 5),
            **{name: round(value, 5) for name, value in ranks.items()},
            "values": significant(self.values),
        }


@torch.inference_mode()
def observe(
    model: PreTrainedModel,
    architecture: Architecture,
    batches: Sequence[Batch],
    progress: Progress = silent,
) -> Iterator[BlockActivations]:
    """Moments of the four streams, one block at a time. Cost: one pass through the blocks and n d² for every width."""
    model.eval()
    streams = list(rehearse(model, architecture, batches))
    for visit in forward(model, architecture):
        tallies: dict[str, Moments] = {}
        for stream in streams:
            hooks = {path: _hook(tallies, name, stream) for name, path in _paths(architecture, visit.i).items()}
            with listening(model, inputs=hooks):
                visit.advance(stream)
        progress("activations", visit.i + 1, architecture.n_blocks)
        yield BlockActivations(visit.i, tallies)


def significant(values: Tensor, digits: int = 5) -> list[float]:
    """Numbers as JSON keeps them: short, and no less true."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def _paths(architecture: Architecture, i: int) -> dict[str, str]:
    heads, neurons = architecture.blocks[i].one(HEADS), architecture.blocks[i].one(NEURONS)
    entry = heads.module if heads.fixed else heads.writers[0].module
    return dict(zip(STREAMS, (entry, heads.reader, neurons.first, neurons.reader), strict=True))


def _hook(tallies: dict[str, Moments], name: str, stream: Stream) -> Hook:
    def add(X: Tensor) -> None:
        new = Moments.of(real_rows(X, stream.rows))
        tallies[name] = tallies[name] + new if name in tallies else new

    return add

"""How linear is every feed-forward part? The R² of the best affine map from what it reads to what it writes.

The map is fitted on some of the data and measured on the rest. The part alone is measured, without the stream it is
added to: with it R² would be near one whatever the part does. `rank95` is the least rank whose map explains 95 % of
what the whole map explains, over the width of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.decompose.linear_map import RankMaps, errors_at_every_rank, reduced_rank
from slimformer.linalg.pairs import Pairs
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture
from slimformer.models.architecture import NEURONS
from slimformer.models.hooks import listening
from slimformer.models.walk import Stream, Visit, forward, real_rows, rehearse
from slimformer.rewrite.bypass import Reading

SHARE = 0.95


@dataclass(frozen=True)
class Linearity:
    """Of one block: R² on data that were not fitted, on those that were, and the rank the map needs."""

    block: int
    r2: float
    r2_fit: float
    rank95: float

    def to_json(self) -> dict[str, float]:
        """As `slimformer inspect --json` prints it."""
        return {name: round(getattr(self, name), 5) for name in ("r2", "r2_fit", "rank95")}


@torch.inference_mode()
def linearity(
    model: PreTrainedModel,
    architecture: Architecture,
    fit: Sequence[Batch],
    held: Sequence[Batch],
    progress: Progress = silent,
) -> Iterator[Linearity]:
    """One block at a time. Cost: one pass over both data sets, n D² for the sums and O(D³) for each block."""
    model.eval()
    walks = [list(rehearse(model, architecture, batches)) for batches in (fit, held)]
    for visit in forward(model, architecture):
        known, other = (_pairs(visit, streams) for streams in walks)
        progress("linearity", visit.i + 1, architecture.n_blocks)
        yield how_linear(visit.i, known, other)


def how_linear(block: int, fit: Pairs, held: Pairs) -> Linearity:
    """From the sums of pairs alone."""
    maps = reduced_rank(fit)
    known, other = (_explained(pairs, maps) for pairs in (fit, held))
    rank = int((other < SHARE * other[-1]).sum()) if float(other[-1]) > 0 else 0
    return Linearity(block, float(other[-1]), float(known[-1]), rank / fit.x.width)


def _explained(pairs: Pairs, maps: RankMaps) -> Tensor:
    """R² at every rank; what does not vary is explained."""
    variance = pairs.variance
    return 1 - errors_at_every_rank(pairs, maps) / variance if variance > 0 else torch.ones(1 + len(maps.V))


def _pairs(visit: Visit, streams: Sequence[Stream]) -> Pairs:
    """Sums over what the feed-forward part of a block reads and writes; the streams go through the block."""
    site = visit.here.one(NEURONS)
    total = Pairs.zero(site.outer, site.outer)
    for stream in streams:
        seen: dict[str, list[Tensor]] = {"read": [], "written": []}
        hooks = {name: rows.append for name, rows in seen.items()}
        read, written = {site.first: hooks["read"]}, {Reading(site).exit: hooks["written"]}
        with listening(visit.model, inputs=read, outputs=written):
            visit.advance(stream)
        total += Pairs.of(*(real_rows(torch.cat(rows), stream.rows) for rows in seen.values()))
    return total

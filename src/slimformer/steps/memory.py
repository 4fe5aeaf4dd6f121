"""The limit of `compress --memory`: what the work will take of memory and disk, told from shapes and measured again.

The first estimate needs config and headers only, so that what could not be kept to is refused before a weight is read.
Once data and what is outside the blocks are there, what they take is known and no longer estimated.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.documents import source_names
from slimformer.calibrate.gather import Data, vocabulary
from slimformer.calibrate.metric import TOKENS as METRIC
from slimformer.errors import CannotWrite
from slimformer.messages.words import option
from slimformer.models.architecture import reads_windows
from slimformer.models.ranks import rank_sites
from slimformer.models.stream import Skeleton
from slimformer.models.walk import rehearse
from slimformer.plan.memory import DOUBLE, Estimate, Load, Work, estimate_memory, in_words, require_memory
from slimformer.rewrite.probe import TOKENS as PROBE_TOKENS
from slimformer.rewrite.refine import TOKENS as OUTPUT_TOKENS

PROBE, OUTPUTS = 2 * PROBE_TOKENS, 2 * OUTPUT_TOKENS  # the last batch may go beyond what is enough
BATCHES = (8, 4, 2, 1)  # rows at a time: as many as fit
TEXT = 8  # times the size of its file that a text takes while it is cut into documents; more than half for non-Latin


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that work on a skeleton may take."""

    skeleton: Skeleton
    memory: int
    work: Work

    def before_opening(self, source: Any, batch_size: int | None = None) -> Estimate:
        """The memory it takes with the largest batches that fit, or with those of an earlier run if they do; refused
        where the smallest do not. No weight has been read, and no data."""
        load = _load(self.skeleton, data=_reading(source), opened=False)
        best = self._fitting(load, BATCHES if batch_size not in BATCHES else (batch_size, *BATCHES))
        require_memory(best, self.memory)
        return best

    def before_work(self, data: Data, batch_size: int) -> Estimate:
        """The same with data and outside weights there, and with what blocks are called with; refused where it grew too
        much."""
        give_back()
        whole = self._fitting(_load(self.skeleton, calls=_calls(self.skeleton, data), opened=True), (batch_size,))
        to_come = {phase: size for phase, size in whole.phases.items() if phase not in ("open", "data")}
        estimate = replace(whole, phases=to_come)
        require_memory(estimate, self.memory)
        return estimate

    def _fitting(self, load: Load, sizes: tuple[int, ...]) -> Estimate:
        model, architecture, before = self.skeleton.loaded.model, self.skeleton.architecture, anonymous_memory()
        estimates = [
            estimate_memory(
                architecture, load, replace(self.work, batch_size=batch_size), vocabulary=_outputs(model),
                before=before, windows=reads_windows(model, architecture.family),
            )
            for batch_size in sizes
        ]  # fmt: skip
        return next((each for each in estimates if each.peak <= self.memory), estimates[-1])

    def disk(self, data: Data, fraction: float) -> int:
        """Bytes of the work folder when it is fullest: moments of two splits, states of every walk, blocks.

        A stream is kept where it starts and twice on its way; with correction there is a second one, and what the dense
        sublayers did. Metric and probes keep a state for every block, and are gone when the correction begins. Blocks
        are there as they were before and after a change, in the precision that is worked in, and as they are stored.
        """
        architecture, weights, work, item = self.skeleton.architecture, self.skeleton.weights, self.work, DOUBLE
        m, n_blocks = architecture.hidden, architecture.n_blocks
        moments = 2 * sum(site.width * (site.width + 1) // 2 * item for site in architecture)
        moments += 2 * n_blocks * m * (max(site.width for site in architecture) + m) * item if work.joint else 0
        moments += 2 * len(architecture.sites) * m * m * item if work.metric else 0
        row = m * self.skeleton.dtype.itemsize
        walked = data.tokens["fit"] + data.tokens["select"]
        rows = walked * (9 if work.refined else 3) + 6 * data.tokens["report"]
        rows += METRIC * (n_blocks + 3) if work.metric else 0
        rows += 2 * PROBE * (len(rank_sites(self.skeleton.loaded.model, architecture)) + len(architecture.sites) + 2)
        outputs = OUTPUTS * (6 * row + _outputs(self.skeleton.loaded.model) * 4) if work.refined else 0
        names = [name for i in range(n_blocks) for name in self.skeleton.inside(i)]
        blocks = fraction * (2 * weights.size(names, self.skeleton.dtype) + weights.size(names, self.stored))
        return moments + row * rows + outputs + int(blocks) + weights.size(self.skeleton.outside, self.stored)

    @property
    def stored(self) -> torch.dtype:
        return self.skeleton.loaded.dtype


def _load(skeleton: Skeleton, *, data: int = 0, calls: int = 0, opened: bool) -> Load:
    weights, dtype, stored = skeleton.weights, skeleton.dtype, skeleton.loaded.dtype
    blocks = [skeleton.inside(i) for i in range(skeleton.architecture.n_blocks)]
    return Load(
        item=dtype.itemsize,
        block=max(weights.size(names, dtype) for names in blocks),
        block_copied=max(weights.copied(names, dtype) for names in blocks),
        outside_copied=0 if opened else weights.copied(skeleton.outside, dtype),
        stored=weights.size(skeleton.outside, stored), data=data, calls=calls,
    )  # fmt: skip


def anonymous_memory() -> int:
    """Bytes of anonymous memory this process has now; a usual figure where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    except (OSError, StopIteration, ValueError):
        return 400 * 10**6


def give_back() -> None:
    """Let the allocator return what is free, where it can: it would be counted as in use."""
    gc.collect()
    trim()


@contextmanager
def past_frozen() -> Iterator[None]:
    """Leave what is there already out of collections: with torch and transformers each would take a fifth of a second,
    and there is one after every block."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def trim() -> None:
    """Let the allocator return what is free, where it can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # other systems have other allocators
        return


def _outputs(model: PreTrainedModel) -> int:
    """Numbers a position gives at the end: words, or the width of the stream."""
    return vocabulary(model) if model.get_output_embeddings() is not None else int(model.config.hidden_size)


def _reading(source: Any) -> int:
    """What reading the data takes, where they are files; of others it is known once they are there."""
    if isinstance(source, torch.Tensor):
        return 3 * source.nbytes
    names = source_names(source) if isinstance(source, str | Path) else []
    return TEXT * sum(os.path.getsize(name) for name in names if os.path.isfile(name))


def _calls(skeleton: Skeleton, data: Data) -> int:
    """What blocks are called with (masks, positions) for all batches, as measured on one batch of each split."""
    total = 0
    with torch.inference_mode():
        for batches in data.splits.values():
            largest = max(batches, key=lambda batch: batch.tokens)
            (stage,) = rehearse(skeleton.loaded.model, skeleton.architecture, [largest])
            leaves = [x for call in stage.calls for value in call.values() for x in _tensors(value)]
            total += len(batches) * sum({x.data_ptr(): x.nbytes for x in leaves}.values())
    return total


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, tuple | list) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


def require_disk(needed: int, folder: Path) -> None:
    """Refuse before the work what the disk has no room for; what an earlier run left there counts as room."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    free = shutil.disk_usage(place).free + there
    if needed > free:
        raise CannotWrite(
            f"the work takes about {in_words(needed)} of disk in {folder}, and {in_words(free)} are free there; free "
            f"some space, or choose another place with {option('folder')}"
        )

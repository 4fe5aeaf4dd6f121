"""The residence of a model larger than memory: weights in their files, states in mapped files, a note of every block.

The smaller model has its blocks in files of the work folder, in the precision that is worked in. A block that is
settled becomes a new file, and counts from the moment that is noted: so no block is changed twice by a run that was
stopped in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.store import moments_file, open_statistics
from slimformer.checkpoint.atomic import one_clear_line
from slimformer.checkpoint.shards import read_block, restore_shapes, write_block
from slimformer.errors import PlanDoesNotFit, WorkTorn
from slimformer.files.disk import flush
from slimformer.models.state_store import StateStore
from slimformer.models.stream import Skeleton, release
from slimformer.steps.memory import give_back, trim
from slimformer.steps.streaming_job import Job, require_whole

TRIMMED = 16 * 10**6  # bytes of states after which free memory is returned


class States:
    """States in mapped files and notes in the job: what both models have in common (see `models.residence`).

    What batches leave free in the allocator is returned now and then: it reuses large pieces badly, so what is in use
    would grow with the number of tokens.
    """

    def __init__(self, job: Job, mark: str) -> None:
        self.job, self.mark, self.store = job, mark, StateStore(job.states)
        self.versions = job.versions()  # of the blocks of the smaller model
        self.unnoted: dict[int, int] = {}
        self._kept = 0

    def keep(self, name: str, state: Tensor) -> Tensor:
        place = self.store.keep(name, state)
        self._kept += state.nbytes
        if self._kept >= TRIMMED:
            self._kept = 0
            trim()
        return place

    def finish(self, phase: str, note: Any) -> None:
        """All of a block is on the disk before it counts as finished."""
        with one_clear_line(self.job.folder):
            self.store.flush(self.job.done(phase) + 1)
            for path in self.job.statistics.rglob("*"):
                if path.is_file():
                    flush(path)
        self.job.finish(phase, note, self.unnoted)
        for i, version in self.unnoted.items():
            self._remove_before(i, version)
        self.unnoted.clear()
        give_back()

    def file(self, i: int) -> Path:
        """Where block i of the smaller model is, once it was cut."""
        return self.job.block(i, self.versions[i])

    def new_file(self, i: int) -> Path:
        """Where it will be from now on."""
        self.versions[i] = self.unnoted[i] = self.versions.get(i, 0) + 1
        return self.job.block(i, self.versions[i])

    def _remove_before(self, i: int, version: int) -> None:
        for old in range(1, version):
            for suffix in (".safetensors", ".json"):
                self.job.block(i, old).with_suffix(suffix).unlink(missing_ok=True)


class _InFiles:
    """What a residence on disk does, whichever of the two models lives there."""

    def __init__(self, skeleton: Skeleton, states: States) -> None:
        self.skeleton, self.states = skeleton, states

    def keep(self, name: str, state: Tensor) -> Tensor:
        return self.states.keep(name, state)

    def recall(self, name: str) -> Tensor:
        return self.states.store.recall(name)

    def forget(self, prefix: str) -> None:
        self.states.store.forget(prefix)

    def notes(self, phase: str) -> list[Any]:
        return self.states.job.notes(phase)

    def finish(self, phase: str, note: Any) -> None:
        self.states.finish(phase, note)

    def reads(self, _n: int) -> bool:
        return True

    def fingerprint(self, _model: PreTrainedModel) -> str:
        return self.states.mark


class Copy(_InFiles):
    """Where the smaller model lives: its blocks in files of the work folder, the rest in memory."""

    model: PreTrainedModel

    def copy(self, _model: PreTrainedModel) -> PreTrainedModel:
        """A second skeleton, whose blocks have the shapes of what is settled."""
        self.model = self.skeleton.twin()
        for i in sorted(self.states.versions):
            restore_shapes(self.states.file(i), self.model, self.skeleton.architecture, i)
        return self.model

    @property
    def of_copy(self) -> Copy:
        return self

    @contextmanager
    def block(self, i: int) -> Iterator[None]:
        """Cut or, so far, as it is in the checkpoint."""
        if i in self.states.versions:
            read_block(self.states.file(i), self.model, self.skeleton.dtype)
        else:
            self.skeleton.fill(self.model, i)
        try:
            yield
        finally:
            release(self.model, self.skeleton.architecture, i)

    def settle(self, i: int) -> None:
        write_block(self.states.new_file(i), self.model, self.skeleton.architecture, i, self.skeleton.dtype)


class OnDisk(_InFiles):
    """Where a checkpoint lives that is read from its files, and what becomes of it; see `models.residence`."""

    def __init__(self, skeleton: Skeleton, job: Job, mark: str) -> None:
        super().__init__(skeleton, States(job, mark))
        self.of_copy = Copy(skeleton, self.states)
        _require_all_there(job, self.states)

    def copy(self, model: PreTrainedModel) -> PreTrainedModel:
        return self.of_copy.copy(model)

    def block(self, i: int) -> AbstractContextManager[object]:
        return self.skeleton.resident(i)

    def settle(self, _i: int) -> None:
        raise NotImplementedError("the checkpoint that is read stays as it is")


def _require_all_there(job: Job, states: States) -> None:
    """Refuse work of which something is missing that its notes count on."""
    finished = job.done("calibrate")
    require_whole(*(moments_file(job.statistics, i) for i in range(finished)))
    require_whole(*(job.block(i, version) for i, version in states.versions.items()))
    if finished:
        try:
            open_statistics(job.statistics)
        except PlanDoesNotFit as error:
            raise WorkTorn(f"{job.statistics / 'stats.json'} cannot be read") from error

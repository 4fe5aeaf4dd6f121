"""The residence of a model larger than memory: weights in their files, states in mapped files, a note of every block.

What batches leave free in the allocator is returned now and then: it reuses large pieces badly, so what is in use would
grow with the number of tokens.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.models.state_store import StateStore
from slimformer.models.stream import Skeleton
from slimformer.steps.memory import trim
from slimformer.steps.streaming_job import Job

TRIMMED = 16 * 10**6  # bytes of states after which free memory is returned


@dataclass(frozen=True)
class OnDisk:
    """See `models.residence.Residence`."""

    skeleton: Skeleton
    job: Job
    states: StateStore
    _kept: list[int] = field(default_factory=lambda: [0], repr=False)  # bytes since memory was returned

    def block(self, i: int) -> AbstractContextManager[object]:
        return self.skeleton.resident(i)

    def keep(self, name: str, state: Tensor) -> Tensor:
        place = self.states.keep(name, state)
        self._kept[0] += state.nbytes
        if self._kept[0] >= TRIMMED:
            self._kept[0] = 0
            trim()
        return place

    def recall(self, name: str) -> Tensor:
        return self.states.recall(name)

    def forget(self, prefix: str) -> None:
        self.states.forget(prefix)

    def notes(self, phase: str) -> list[Any]:
        return self.job.notes(phase)

    def finish(self, phase: str, note: Any) -> None:
        """States are on the disk before a block counts as finished."""
        done = self.job.done(phase) + 1
        self.states.flush(done)
        self.job.finish(phase, done, note)

    def reads(self, _n: int) -> bool:
        return True

    def copy(self, _model: PreTrainedModel) -> PreTrainedModel:
        return self.skeleton.twin()

    @property
    def of_copy(self) -> OnDisk:
        return self

    def settle(self, _i: int) -> None:
        return

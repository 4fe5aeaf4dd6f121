"""Where the weights of a model and the states that go through it live while it is walked block by block.

In memory nothing has to be done. A model larger than memory has its weights in files and its states in mapped files,
and notes which blocks are finished, so that a run that was stopped can go on; see `steps.on_disk`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.models.architecture import fingerprint


class Residence(Protocol):
    """What a walk asks for. States are known by name; phases are the walks a run consists of."""

    def block(self, i: int) -> AbstractContextManager[object]:
        """The weights of block i can be used inside."""
        ...

    def keep(self, name: str, state: Tensor) -> Tensor:
        """A state under a name, from where it stays; what had that name before is overwritten."""
        ...

    def recall(self, name: str) -> Tensor:
        """What was kept under a name, by this run or by one that was stopped."""
        ...

    def forget(self, prefix: str) -> None:
        """States whose names begin so are not needed any more."""
        ...

    def notes(self, phase: str) -> list[Any]:
        """What was noted of each block an earlier run had finished in a phase; none where there was no such run."""
        ...

    def finish(self, phase: str, note: Any) -> None:
        """One more block is finished, and this is to be known of it if the run is stopped. JSON can say the note."""
        ...

    def reads(self, n: int) -> bool:
        """Is the n-th batch of a split for this process?"""
        ...

    def fingerprint(self, model: PreTrainedModel) -> str:
        """The fingerprint of the model that lives here (`architecture.fingerprint`)."""
        ...

    def copy(self, model: PreTrainedModel) -> PreTrainedModel:
        """A copy of the model, to be made smaller; blocks an earlier run had cut already have their shapes."""
        ...

    @property
    def of_copy(self) -> Residence:
        """Where the copy lives. States are kept in the same place."""
        ...

    def settle(self, i: int) -> None:
        """Block i has been changed: what it is now is what it will be the next time it is asked for."""
        ...


@dataclass(frozen=True)
class InMemory:
    """All weights and states are in memory. Of several processes this may be one: `share` is (which, of how many)."""

    share: tuple[int, int] = (0, 1)

    def block(self, _i: int) -> AbstractContextManager[object]:
        return nullcontext()

    def keep(self, _name: str, state: Tensor) -> Tensor:
        return state

    def recall(self, name: str) -> Tensor:
        raise LookupError(f"{name}: states in memory are lost with the process")

    def forget(self, _prefix: str) -> None:
        return

    def notes(self, _phase: str) -> list[Any]:
        return []

    def finish(self, _phase: str, _note: Any) -> None:
        return

    def reads(self, n: int) -> bool:
        which, of = self.share
        return n % of == which

    def fingerprint(self, model: PreTrainedModel) -> str:
        return fingerprint(model)

    def copy(self, model: PreTrainedModel) -> PreTrainedModel:
        return deepcopy(model)

    @property
    def of_copy(self) -> InMemory:
        return self

    def settle(self, _i: int) -> None:
        return


IN_MEMORY = InMemory()

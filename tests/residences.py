"""A residence that gives no more than it has to: one block's weights at a time, states in files, notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.models import describe
from slimformer.models.state_store import StateStore
from slimformer.models.stream import release


class OneBlock:
    """A model loses its blocks when it moves in here; outside of `block` they have shapes only."""

    def __init__(self, model: PreTrainedModel, folder: Path, notes: dict[str, list[Any]] | None = None) -> None:
        self.model, self.folder, self.architecture = model, folder, describe(model)
        self.states = StateStore(folder)
        self.said = {} if notes is None else notes
        self.weights: list[dict[str, Tensor]] = []
        self.open: list[int] = []
        self.home: OneBlock | None = None
        for i in range(self.architecture.n_blocks):
            self.weights.append({})
            self.settle(i)
            release(model, self.architecture, i)

    @contextmanager
    def block(self, i: int) -> Iterator[None]:
        assert not self.open, "one block at a time"
        self.open.append(i)
        for name, tensor in self.weights[i].items():
            path, _, leaf = name.rpartition(".")
            parameters = self._block(i).get_submodule(path)._parameters
            parameters[leaf] = type(parameters[leaf])(tensor, requires_grad=False)
        try:
            yield
        finally:
            release(self.model, self.architecture, i)
            self.open.pop()

    def settle(self, i: int) -> None:
        self.weights[i] = {name: parameter.detach() for name, parameter in self._block(i).named_parameters()}

    def _block(self, i: int) -> Any:
        return self.model.get_submodule(self.architecture.blocks[i].path)

    def keep(self, name: str, state: Tensor) -> Tensor:
        return self.states.keep(name, state)

    def recall(self, name: str) -> Tensor:
        return self.states.recall(name)

    def forget(self, prefix: str) -> None:
        self.states.forget(prefix)

    def notes(self, phase: str) -> list[Any]:
        return list(self.said.get(phase, []))

    def finish(self, phase: str, note: Any) -> None:
        self.said.setdefault(phase, []).append(note)

    def reads(self, _n: int) -> bool:
        return True

    def copy(self, _model: PreTrainedModel) -> PreTrainedModel:
        """The blocks come back for a moment, because there is no file to read them from."""
        from copy import deepcopy

        whole = deepcopy(self.model)
        for i, weights in enumerate(self.weights):
            block: Any = whole.get_submodule(self.architecture.blocks[i].path)
            for name, tensor in weights.items():
                path, _, leaf = name.rpartition(".")
                parameters = block.get_submodule(path)._parameters
                parameters[leaf] = type(parameters[leaf])(tensor.clone(), requires_grad=False)
        self.home = OneBlock(whole, self.folder, self.said)
        return whole

    @property
    def of_copy(self) -> OneBlock:
        assert self.home is not None
        return self.home

    def all_weights(self) -> dict[str, Tensor]:
        """Every weight under its full name, as if the model were in memory."""
        found = {name: tensor for name, tensor in self.model.state_dict().items() if not tensor.is_meta}
        for i, weights in enumerate(self.weights):
            found |= {f"{self.architecture.blocks[i].path}.{name}": tensor for name, tensor in weights.items()}
        return found

"""States between blocks in files that are mapped into memory: the system keeps in memory what fits, and no more.

Their room on the disk is taken before they are written, so that a full disk is an error and not a crash.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from slimformer.errors import CannotWrite


@dataclass(frozen=True)
class Shelf:
    """Tensors by name, one file each, which a later process finds again."""

    folder: Path
    mapped: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def keep(self, name: str, state: Tensor) -> Tensor:
        """The same values in the file of that name; what was there before is overwritten."""
        place = self.mapped.get(name)
        if place is None or place.shape != state.shape or place.dtype != state.dtype:
            place = self.mapped[name] = self._room(name, state)
        return place.copy_(state)

    def recall(self, name: str) -> Tensor:
        """What was kept under that name, perhaps by an earlier process."""
        if name not in self.mapped:
            path = next(self.folder.glob(f"{name}.*.state"))
            kind, *shape = path.name.removeprefix(f"{name}.").removesuffix(".state").split("-")
            self.mapped[name] = _mapped(path, torch.Size(map(int, shape)), getattr(torch, kind))
        return self.mapped[name]

    def _room(self, name: str, state: Tensor) -> Tensor:
        for old in self.folder.glob(f"{name}.*.state"):
            old.unlink()
        kind = str(state.dtype).removeprefix("torch.")
        path = self.folder / f"{name}.{'-'.join(map(str, (kind, *state.shape)))}.state"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                _take(file.fileno(), state.numel() * state.element_size())
        except OSError as error:
            raise CannotWrite(f"{path} cannot be written: {error.strerror or error}; free some space there") from error
        return _mapped(path, state.shape, state.dtype)


def _take(file: int, size: int) -> None:
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


@torch.inference_mode(False)  # so that it may be written to in any mode
def _mapped(path: Path, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    size = shape.numel()
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape)

"""States between blocks in files that are mapped into memory: the system keeps in memory what fits, and no more.

Their room on the disk is taken before they are written, so that a full disk is an error and not a crash.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from slimformer.errors import CannotWrite, WorkTorn
from slimformer.files.disk import flush


@dataclass(frozen=True)
class StateStore:
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
            path = self._found(name)
            if path is None:
                raise WorkTorn(f"{self.folder}: the state {name} is not there, or not whole")
            self.mapped[name] = _mapped(*path)
        return self.mapped[name]

    def holds(self, name: str) -> bool:
        """Is there a whole file of that name?"""
        return self._found(name) is not None

    def flush(self, turn: int) -> None:
        """Let the states whose turn it is (see `walk.Stream.label`) be on the disk, not only on their way to it."""
        for path in self.folder.glob(f"*.{turn % 2}.*.state"):
            flush(path)

    def forget(self, prefix: str) -> None:
        """Remove the files of states whose names begin so."""
        for name in [name for name in self.mapped if name.startswith(prefix)]:
            del self.mapped[name]
        for path in self.folder.glob(f"{prefix}*.state"):
            path.unlink()

    def _found(self, name: str) -> tuple[Path, torch.Size, torch.dtype] | None:
        """File, shape and kind of numbers of a state, if all of it is there."""
        for path in self.folder.glob(f"{name}.*.state"):
            try:
                kind, *sizes = path.name.removeprefix(f"{name}.").removesuffix(".state").split("-")
                shape, dtype = torch.Size(map(int, sizes)), getattr(torch, kind)
                if path.stat().st_size == shape.numel() * dtype.itemsize:
                    return path, shape, dtype
            except (ValueError, AttributeError, OSError):
                continue
        return None

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

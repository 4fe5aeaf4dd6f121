"""Labelled rows that wait on disk to be read again: a file for each stream of rows, mapped, gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

ROWS = 4096  # rows in memory at once
Name = TypeVar("Name", bound=Hashable)


class WaitingRows:
    """Rows in single precision with their labels, 4 d + 4 bytes each; iterates over them in parts, any number of times.

    Memory: one part, and the names of the labels.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.labels = path, path.with_suffix(".labels")
        self.width = 0
        self.numbers: dict[Any, int] = {}

    def append(self, X: Tensor, y: Sequence[Any] | NDArray[Any]) -> None:
        """More rows, at the end."""
        self.width = X.shape[1]
        named = [self.numbers.setdefault(label, len(self.numbers)) for label in np.asarray(y).tolist()]
        for path, data in ((self.path, X.float().numpy()), (self.labels, np.array(named, np.int32))):
            with path.open("ab") as file:
                file.write(np.ascontiguousarray(data).tobytes())

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], NDArray[Any]]]:
        rows = np.memmap(self.path, np.float32, "r").reshape(-1, self.width)
        labels, names = np.memmap(self.labels, np.int32, "r"), np.array(list(self.numbers))
        for start in range(0, len(rows), ROWS):
            yield rows[start : start + ROWS], names[labels[start : start + ROWS]]


@contextmanager
def waiting_rows(names: Iterable[Name]) -> Iterator[dict[Name, WaitingRows]]:
    """A place to wait for each name, in a temporary folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="slimformer-") as folder:
        yield {name: WaitingRows(Path(folder) / f"{i}.rows") for i, name in enumerate(names)}

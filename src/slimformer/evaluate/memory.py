"""Peak memory of a forward pass: tensors alive at once, counted as they come and go.

    peak = max over time of  Σ bytes of storages made since the pass began and still alive

Weights are not in it; they are counted apart. A storage shared by several tensors counts once. Room that a kernel takes
for itself and gives back before it returns is not seen; nor is what a memory allocator keeps in reserve. The figure is
the same on every machine and in every run, which the resident size of a process is not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Ledger(TorchDispatchMode):
    """Counts storages made inside it: `live` bytes now, `peak` bytes at the worst moment."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs or {}))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            if storage._cdata not in given and storage._cdata not in self._sizes:
                self._enter(storage)
        return out

    def _enter(self, storage: Any) -> None:
        self._sizes[storage._cdata] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._leave, storage._cdata)

    def _leave(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def _storages(tree: Any) -> Iterator[Any]:
    for leaf in tree_iter(tree):
        if isinstance(leaf, Tensor):
            yield leaf.untyped_storage()


def peak_bytes(call: Callable[[], object]) -> int:
    """Bytes of tensors a call needs at its worst moment, besides those that were there before. Cost: one call."""
    with torch.inference_mode(), Ledger() as ledger:
        call()
    return ledger.peak

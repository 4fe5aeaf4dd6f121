"""A few rows kept as they are, so that leave-one-out errors can be read off moments of millions.

The rows kept are those whose digests are smallest. That is a uniform sample of the distinct rows which does not depend
on their order, and the sample of a union follows from the samples of its parts (bottom-k sketch, Cohen & Kaplan 2007).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimformer.heads.class_moments import NOTHING


@dataclass(frozen=True)
class KeptRows:
    """At most `limit` rows with their targets and weights, by rising digest."""

    limit: int
    keys: NDArray[np.uint64]
    X: Tensor  # k × d, float64
    targets: NDArray[Any]  # k labels, or k × q numbers
    weights: Tensor  # k

    @classmethod
    def of(cls, X: Tensor, targets: NDArray[Any], weights: Tensor, limit: int) -> KeptRows:
        """The sample of these rows. Cost: one digest for each row."""
        rows = X.double().contiguous()
        data = rows.numpy() if limit else rows.numpy()[:0]
        keys = np.array([_digest(row, target) for row, target in zip(data, targets, strict=bool(limit))], np.uint64)
        return cls(limit, keys, rows[: len(keys)], targets[: len(keys)], weights[: len(keys)])._cut()

    def __len__(self) -> int:
        return len(self.keys)

    def __add__(self, other: KeptRows) -> KeptRows:
        """The sample of both streams of rows together."""
        return KeptRows(
            min(self.limit, other.limit),
            np.concatenate([self.keys, other.keys]),
            torch.cat([self.X, other.X]),
            np.concatenate([self.targets, other.targets]),
            torch.cat([self.weights, other.weights]),
        )._cut()

    def __sub__(self, other: KeptRows) -> KeptRows:
        """Less the rows of `other`, weight by weight: a weight is so many rows. What had to make room stays away."""
        gone: dict[int, float] = {}
        for key, weight in zip(other.keys.tolist(), other.weights.tolist(), strict=True):
            gone[key] = gone.get(key, 0.0) + weight
        left = self.weights.tolist()
        for i, key in enumerate(self.keys.tolist()):
            taken = min(left[i], gone.get(key, 0.0))
            if taken:
                left[i], gone[key] = left[i] - taken, gone[key] - taken
        lighter = replace(self, weights=torch.tensor(left, dtype=self.weights.dtype))
        return lighter._take(np.flatnonzero(np.array(left) > NOTHING))

    def only(self, labels: Collection[Any]) -> KeptRows:
        """Those whose label is one of these."""
        known = set(labels)
        return self._take(np.flatnonzero([target in known for target in self.targets.tolist()]))

    def _cut(self) -> KeptRows:
        return self._take(np.lexsort((self.weights.numpy(), self.keys))[: self.limit])

    def _take(self, index: NDArray[np.int64]) -> KeptRows:
        places = torch.from_numpy(index)
        return KeptRows(self.limit, self.keys[index], self.X[places], self.targets[index], self.weights[places])


def _digest(row: NDArray[np.float64], target: Any) -> int:
    number = isinstance(target, float | np.floating) and float(target).is_integer()
    target = int(target) if number else target  # 2 and 2.0 are one label
    target_bytes = str(target).encode() if np.ndim(target) == 0 else np.asarray(target, np.float64).tobytes()
    # + 0.0: zero and minus zero are one number
    return int.from_bytes(hashlib.blake2b((row + 0.0).tobytes() + target_bytes, digest_size=8).digest(), "little")

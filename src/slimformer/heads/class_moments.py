"""What a head needs to know of labelled rows: sums that add, subtract and travel.

For rows x ∈ ℝᵈ with weights w and targets y ∈ ℝ^q the moments are n = Σ w, Σ w x, Σ w x xᵀ, Σ w y, Σ w x yᵀ and
Σ w y². They form a commutative group up to rounding: batches and machines add up in any order, and rows that are
subtracted were never seen. Classes are targets too, the indicator of each, but a new class may turn up at any time, so
their moments go by label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.errors import CannotForget
from slimformer.linalg.moments import Moments

NOTHING = 1e-9  # a class whose weight has come down to this was never seen


@dataclass(frozen=True)
class TargetMoments:
    """Moments of rows with numbers as targets. Memory d² + d q, whatever the number of rows."""

    rows: float
    x: Float[Tensor, " d"]
    gram: Float[Tensor, "d d"]
    y: Float[Tensor, " q"]
    cross: Float[Tensor, "d q"]
    energy: Float[Tensor, " q"]

    @classmethod
    def of(cls, X: Float[Tensor, "n d"], Y: Float[Tensor, "n q"], w: Float[Tensor, " n"]) -> TargetMoments:
        """Moments of the rows of X with targets Y and weights w. Cost n d (d / 2 + q)."""
        V = (X * w[:, None].to(X.dtype)).double()
        gram = Moments.of(X * w.sqrt()[:, None].to(X.dtype)).gram
        return cls(float(w.sum()), V.sum(0), gram, w @ Y, V.mT @ Y, w @ Y**2)

    def __add__(self, other: TargetMoments) -> TargetMoments:
        return self._with(other, 1)

    def __sub__(self, other: TargetMoments) -> TargetMoments:
        if other.rows > self.rows * (1 + NOTHING):
            raise CannotForget(f"{other.rows:g} rows are to be forgotten, and {self.rows:g} were seen")
        return self._with(other, -1)

    def _with(self, other: TargetMoments, sign: int) -> TargetMoments:
        return TargetMoments(*(a + sign * b for a, b in zip(_fields(self), _fields(other), strict=True)))


def _fields(moments: TargetMoments) -> tuple[Any, ...]:
    return moments.rows, moments.x, moments.gram, moments.y, moments.cross, moments.energy


@dataclass(frozen=True)
class ClassMoments:
    """n_c and Σ_c x of every class; Σ x xᵀ of all rows together (one matrix), or of each class (C matrices).

    Class weights that are not known beforehand need the latter: memory C d² instead of d².
    """

    labels: tuple[Any, ...]
    counts: Float[Tensor, " C"]
    sums: Float[Tensor, "C d"]
    grams: Float[Tensor, "G d d"]
    apart: bool  # is there a Gram matrix for each class?

    @classmethod
    def zero(cls, labels: Sequence[Any], d: int, *, apart: bool) -> ClassMoments:
        """Nothing seen yet of these classes."""
        C = len(labels)
        grams = torch.zeros(C if apart else 1, d, d, dtype=torch.float64)
        return cls(
            tuple(labels), torch.zeros(C, dtype=torch.float64), torch.zeros(C, d, dtype=torch.float64), grams, apart
        )

    @classmethod
    def of(cls, X: Float[Tensor, "n d"], labels: Sequence[Any], w: Float[Tensor, " n"], *, apart: bool) -> ClassMoments:
        """Moments of the rows of X. Cost n d² / 2."""
        known = tuple(in_order(set(labels)))
        index = {label: i for i, label in enumerate(known)}
        c = torch.tensor([index[label] for label in labels], dtype=torch.long)
        counts = torch.zeros(len(known), dtype=torch.float64).index_add_(0, c, w)
        V = X * w.sqrt()[:, None].to(X.dtype)
        sums = torch.zeros(len(known), X.shape[1], dtype=torch.float64).index_add_(0, c, (X * w[:, None]).double())
        parts = [V[c == i] for i in range(len(known))] if apart else [V]
        return cls(known, counts, sums, torch.stack([Moments.of(part).gram for part in parts]), apart)

    @property
    def gram(self) -> Float[Tensor, "d d"]:
        return self.grams.sum(0)

    @property
    def width(self) -> int:
        return self.sums.shape[1]

    @property
    def means(self) -> Float[Tensor, "C d"]:
        return self.sums / self.counts.clamp(min=NOTHING)[:, None]

    def __add__(self, other: ClassMoments) -> ClassMoments:
        known = tuple(in_order({*self.labels, *other.labels}))
        a, b = self.spread(known), other.spread(known)
        return ClassMoments(known, a.counts + b.counts, a.sums + b.sums, a.grams + b.grams, self.apart)

    def __sub__(self, other: ClassMoments) -> ClassMoments:
        strange = in_order(set(other.labels) - set(self.labels))
        if strange:
            raise CannotForget(f"rows of class {strange[0]!r} are to be forgotten, and none were ever seen")
        b = other.spread(self.labels)
        counts = self.counts - b.counts
        for label, left in zip(self.labels, counts.tolist(), strict=True):
            if left < -NOTHING:
                raise CannotForget(f"{-left:g} more rows of class {label!r} are to be forgotten than were seen")
        remaining = [label for label, left in zip(self.labels, counts.tolist(), strict=True) if left > NOTHING]
        less = ClassMoments(self.labels, counts, self.sums - b.sums, self.grams - b.grams, self.apart)
        return less.spread(remaining)

    def spread(self, labels: Sequence[Any]) -> ClassMoments:
        """The same moments listed by other labels: new ones have seen nothing, missing ones are left out."""
        out = ClassMoments.zero(labels, self.width, apart=self.apart)
        for i, label in enumerate(labels):
            if label in self.labels:
                j = self.labels.index(label)
                out.counts[i], out.sums[i] = self.counts[j], self.sums[j]
                if self.apart:
                    out.grams[i] = self.grams[j]
        return out if self.apart else ClassMoments(out.labels, out.counts, out.sums, self.grams, False)

    def weighted(self, omega: Float[Tensor, " C"]) -> ClassMoments:
        """The moments had every row of class c the weight ω_c; needs a Gram matrix for each class unless all are 1."""
        if bool((omega == 1).all()):
            return self
        assert self.apart, "class weights need the Gram matrix of each class"
        w = omega[:, None]
        return ClassMoments(self.labels, self.counts * omega, self.sums * w, self.grams * w[..., None], True)

    def as_targets(self) -> TargetMoments:
        """Classes as indicators: Σ y = n_c, Σ x yᵀ = Σ_c x, Σ y² = n_c."""
        return TargetMoments(
            float(self.counts.sum()), self.sums.sum(0), self.gram, self.counts, self.sums.mT, self.counts
        )


def in_order(labels: set[Any]) -> list[Any]:
    """Numbers by size, names by the alphabet; a mixture by kind first."""
    return sorted(labels, key=lambda label: (isinstance(label, str), str(label) if isinstance(label, str) else label))


def balanced(counts: Mapping[Any, float] | Float[Tensor, " C"]) -> Float[Tensor, " C"]:
    """ω_c = n / (C n_c): every class weighs the same, and the rows as many as before. Classes never seen get 1."""
    n = torch.tensor(list(counts.values()), dtype=torch.float64) if isinstance(counts, Mapping) else counts
    seen = n > NOTHING
    return torch.where(seen, n.sum() / (max(1, int(seen.sum())) * n.clamp(min=NOTHING)), torch.ones_like(n))

"""What a regression of residuals on features needs to know of the data: again sums only, again a monoid.

Rows are pairs (x, r): features x ∈ ℝᵈ and what is still missing, r ∈ ℝᵐ, in two versions r₀ and r₁ between which the
regression may choose (see `decompose.sequential`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.moments import Moments
from slimformer.linalg.precision import to_double


@dataclass(frozen=True)
class Residuals:
    """Moments of x, Σ r, Σ x rᵀ for both versions of r, and Σ ‖r₁‖². Memory d² + 2 d m."""

    x: Moments
    sums: Float[Tensor, "2 m"]
    cross: Float[Tensor, "2 d m"]
    square: float

    @classmethod
    def of(cls, X: Float[Tensor, "n d"], R0: Float[Tensor, "n m"], R1: Float[Tensor, "n m"]) -> Residuals:
        """Sums over the rows of a batch; products in their precision, kept in double. Cost n d (d/2 + 2 m)."""
        both = [R0, R1]
        return cls(
            Moments.of(X),
            torch.stack([R.sum(0).cpu().double() for R in both]),
            torch.stack([(X.mT @ R).cpu().double() for R in both]),
            float(to_double(R1).square().sum()),
        )

    def __add__(self, other: Residuals) -> Residuals:
        return Residuals(self.x + other.x, self.sums + other.sums, self.cross + other.cross, self.square + other.square)

    @property
    def count(self) -> int:
        return self.x.count

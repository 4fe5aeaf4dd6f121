"""What a regression of residuals on features needs to know of the data: again sums only, again a monoid.

Rows are pairs (x, r): features x ∈ ℝᵈ and what is still missing, r ∈ ℝᵐ, in two versions r₀ and r₁ between which the
regression may choose (see `decompose.sequential`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.moments import Moments, Sums
from slimformer.linalg.precision import to_double


@dataclass(frozen=True)
class Residuals:
    """Moments of x, Σ r, Σ x rᵀ for both versions of r, and Σ ‖r₁‖². Memory d² + 2 d m."""

    x: Moments
    sums: Float[Tensor, "2 m"]
    cross: Float[Tensor, "2 d m"]
    square: float

    @property
    def count(self) -> int:
        return self.x.count


class ResidualSums:
    """Residuals of rows that come batch by batch: products in their precision, added up in double, in place.

    Cost n d (d/2 + 2 m).
    """

    sums: Float[Tensor, "2 m"]
    cross: Float[Tensor, "2 d m"]

    def __init__(self) -> None:
        self.x, self.square = Sums(), 0.0

    def add(self, X: Float[Tensor, "n d"], R0: Float[Tensor, "n m"], R1: Float[Tensor, "n m"]) -> ResidualSums:
        """More rows."""
        if not self.x.count:
            d, m = X.shape[1], R0.shape[1]
            self.sums, self.cross = torch.zeros(2, m).double(), torch.zeros(2, d, m).double()
        for i, R in enumerate((R0, R1)):
            self.sums[i] += R.sum(0).cpu()
            self.cross[i] += (X.mT @ R).cpu()
        self.x.add(X)
        self.square += float(to_double(R1).square().sum())
        return self

    def residuals(self) -> Residuals:
        """Those of all rows so far; no more can be added."""
        return Residuals(self.x.moments(), self.sums, self.cross, self.square)

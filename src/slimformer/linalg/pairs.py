"""What a regression of y on x needs to know of the data: sums of a stream of pairs, again a monoid.

Rows are pairs (x, y), x ∈ ℝᵈ and y ∈ ℝᵐ. Held are the moments of x, Σ y, Σ x yᵀ and Σ ‖y‖²; of the covariance of y a
regression needs no more than the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.moments import ROWS, Moments


@dataclass(frozen=True)
class Pairs:
    """Moments of x, Σ y, Σ x yᵀ and Σ ‖y‖² in double precision. Memory d² + d m."""

    x: Moments
    sum: Float[Tensor, " m"]
    cross: Float[Tensor, "d m"]
    square: float

    @classmethod
    def zero(cls, d: int, m: int) -> Pairs:
        return cls(Moments.zero(d), torch.zeros(m).double(), torch.zeros(d, m).double(), 0.0)

    @classmethod
    def of(cls, X: Float[Tensor, "n d"], Y: Float[Tensor, "n m"]) -> Pairs:
        """Sums over the rows of a batch: products in its precision, about the means; sums of them in double.

        With x' = x − s and y' = y − t, s and t near the means, Σ x yᵀ = Σ x'y'ᵀ + s (Σ y')ᵀ + (Σ x') tᵀ + n s tᵀ.
        Cost n d (d/2 + m).
        """
        x = Moments.of(X)
        X, Y = (Z if Z.dtype == torch.float64 else Z.float() for Z in (X.cpu(), Y.cpu()))
        if not len(X):
            return cls.zero(X.shape[1], Y.shape[1])
        total = Y.sum(0, dtype=torch.float64)
        s, t = X.mean(0), Y.mean(0)
        cross = torch.zeros(X.shape[1], Y.shape[1], dtype=torch.float64)
        for some, others in zip(X.split(ROWS), Y.split(ROWS), strict=True):
            cross += ((some - s).mT @ (others - t)).double()
        s, t, n = s.double(), t.double(), len(X)
        cross += torch.outer(s, total - n * t) + torch.outer(x.sum - n * s, t) + n * torch.outer(s, t)
        return cls(x, total, cross, float(Y.double().square().sum()))

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(self.x + other.x, self.sum + other.sum, self.cross + other.cross, self.square + other.square)

    @property
    def count(self) -> int:
        return self.x.count

    @property
    def mean(self) -> Float[Tensor, " m"]:
        return self.sum / max(self.count, 1)

    @property
    def variance(self) -> float:
        """E ‖y − ȳ‖²."""
        return max(self.square / max(self.count, 1) - float(self.mean.square().sum()), 0.0)

    def about(
        self, μ: Float[Tensor, " d"], ν: Float[Tensor, " m"]
    ) -> tuple[Float[Tensor, "d d"], Float[Tensor, "d m"], float]:
        """E (x − μ)(x − μ)ᵀ, E (x − μ)(y − ν)ᵀ and E ‖y − ν‖² about any two points."""
        n = max(self.count, 1)
        a, b = self.x.mean - μ, self.mean - ν
        C = self.x.second(centred=True) + torch.outer(a, a)
        B = self.cross / n - torch.outer(self.x.mean, self.mean) + torch.outer(a, b)
        return C, B, self.variance + float(b.square().sum())

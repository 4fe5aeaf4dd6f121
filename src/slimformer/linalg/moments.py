"""Second moments of a stream of rows: the only thing compression needs to know of the data.

Moments form a commutative monoid: batches, devices and machines add up, in any order. For rows x ∈ ℝᵈ they hold
n, Σ x and G = Σ x xᵀ in float64, so mean and covariance follow: Σ (x − μ)(x − μ)ᵀ = G − (Σ x)(Σ x)ᵀ / n.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

ROWS = 4096  # rows a single-precision product may sum before it is added up in double precision


@dataclass(frozen=True)
class Moments:
    """Count, sum and Gram matrix of a stream of rows. Memory d² + d, whatever the number of rows."""

    count: int
    sum: Float[Tensor, " d"]
    gram: Float[Tensor, "d d"]

    @classmethod
    def zero(cls, d: int, device: torch.device | str = "cpu") -> Moments:
        return cls(
            0,
            torch.zeros(d, dtype=torch.float64, device=device),
            torch.zeros(d, d, dtype=torch.float64, device=device),
        )

    @classmethod
    def of(cls, X: Float[Tensor, "n d"]) -> Moments:
        """Moments of the rows of X. Products run in the precision of X (at least single), sums of them in double.

        They are taken where X is and kept on the CPU, where there is double precision and room.
        """
        X = X.cpu() if X.device.type == "mps" else X  # no double precision there
        X = X if X.dtype == torch.float64 else X.float()
        gram = torch.zeros(X.shape[1], X.shape[1], dtype=torch.float64, device=X.device)
        for rows in X.split(ROWS):
            gram += _gram(rows)
        return cls(len(X), X.sum(0, dtype=torch.float64).cpu(), gram.cpu())

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.sum + other.sum, self.gram + other.gram)

    @property
    def width(self) -> int:
        return len(self.sum)

    @property
    def mean(self) -> Float[Tensor, " d"]:
        return self.sum / max(self.count, 1)

    def second(self, *, centred: bool) -> Float[Tensor, "d d"]:
        """C = Σ x xᵀ / n, about the mean if a bias can absorb it, else about zero."""
        G = self.gram / max(self.count, 1)
        return G - torch.outer(self.mean, self.mean) if centred else G


def _gram(X: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Σ x xᵀ in double precision.

    Single-precision products are taken about the mean, which else would drown the covariance when it is large:
    Σ x xᵀ = Σ (x − μ)(x − μ)ᵀ + n μ μᵀ.
    """
    if X.dtype == torch.float64:
        return X.mT @ X
    n = max(len(X), 1)
    mean = X.sum(0, dtype=torch.float64) / n
    D, m = X - mean.float(), mean * n**0.5
    return torch.outer(m, m).add_(D.mT @ D)

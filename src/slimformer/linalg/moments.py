"""Second moments of a stream of rows: the only thing compression needs to know of the data.

Moments form a commutative monoid: batches, devices and machines add up, in any order. For rows x ∈ ℝᵈ they hold
n, Σ x and G = Σ x xᵀ in float64, so mean and covariance follow: Σ (x − μ)(x − μ)ᵀ = G − (Σ x)(Σ x)ᵀ / n.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.precision import has_double

ROWS = 4096  # rows a single-precision product may sum before it is added up in double precision
PANEL = 384  # columns of a symmetric product taken at once: few, to save its lower half, but enough to be fast


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

        They are taken where X is and kept on the CPU, where there is double precision and room. Cost n d² / 2
        multiplications there.
        """
        return Sums().add(X).moments()

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


class Sums:
    """Moments of rows that come batch by batch: sums in place, about one point s, put together once.

    With s near the mean, that of the first batch, products in single precision do not drown the covariance when the
    mean is large. With y = x − s and t = Σ y, which is small but not zero:

        Σ x = n s + t,     Σ x xᵀ = Σ y yᵀ + s tᵀ + t sᵀ + n s sᵀ.

    All of it is symmetric, so only the blocks above the diagonal are computed, and mirrored in the end. What a batch
    costs besides its product is one addition of its d² / 2 numbers.
    """

    s: Float[Tensor, " d"]
    t: Float[Tensor, " d"]
    G: Float[Tensor, "d d"]

    def __init__(self) -> None:
        self.count = 0

    def add(self, X: Float[Tensor, "n d"]) -> Sums:
        """More rows."""
        X = X if has_double(X.device.type) else X.cpu()
        X = X if X.dtype == torch.float64 else X.float()
        if not self.count:
            self._begin(X)
        for rows in X.split(ROWS):
            Y = rows - self.s
            self.t += Y.sum(0, dtype=torch.float64)  # rows of other means than s add up to much
            for a in range(0, X.shape[1], PANEL):
                self.G[a : a + PANEL, a:] += Y[:, a : a + PANEL].mT @ Y[:, a:]
        self.count += len(X)
        return self

    def _begin(self, X: Float[Tensor, "n d"]) -> None:
        d = X.shape[1]
        self.s = X.new_zeros(d) if X.dtype == torch.float64 or not len(X) else X.mean(0)
        self.t = torch.zeros(d, dtype=torch.float64, device=X.device)
        self.G = torch.zeros(d, d, dtype=torch.float64, device=X.device)

    def moments(self) -> Moments:
        """Those of all rows so far; no more can be added."""
        s, t, G, n = self.s.double(), self.t, self.G, self.count
        u = t + n / 2 * s
        G.addr_(s, u).addr_(u, s)
        for a in range(0, len(s), PANEL):
            corner = G[a : a + PANEL, a : a + PANEL].triu()
            G[a : a + PANEL, a : a + PANEL] = corner + corner.triu(1).mT
            G[a + PANEL :, a : a + PANEL] = G[a : a + PANEL, a + PANEL :].mT
        return Moments(n, (s * n + t).cpu(), G.cpu())

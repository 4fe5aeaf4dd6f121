"""Weights of which many are zero, so that the others make up for them.

`decompose.compensation` with "settle" = "set to zero what is chosen". What is chosen in a row are the weights whose
exact loss w² / U_jj² is least, a few columns at a time:

    n:m            in every m neighbours of a row all but n            chosen at every m-th column
    a fraction     of each block of 128 columns, over all rows         chosen at every 128-th column

What is left may be rounded later: `decompose.rounding` keeps zeros. Without data (C = I) this is magnitude pruning.

Frantar, Alistarh: SparseGPT, arXiv 2301.00774. The loss is that of the optimal brain surgeon, Hassibi and Stork 1992.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from slimformer.decompose.compensation import DAMPING, compensate, damped_root, whole_groups


@dataclass(frozen=True)
class Pattern:
    """Where zeros may be: `keep` of every `of` neighbours in a row, or (`of` 0) a fraction `zeros` anywhere."""

    zeros: float
    keep: int = 0
    of: int = 0

    @property
    def name(self) -> str:
        return f"{self.keep}:{self.of}" if self.of else f"{self.zeros:g}"

    def choose(self, loss: Float[Tensor, "o b"]) -> Bool[Tensor, "o b"]:
        """What is set to zero, given what each weight would cost. Columns left over after whole groups stay."""
        if not self.of:
            count = round(self.zeros * loss.numel())
            gone = torch.zeros(loss.numel(), dtype=torch.bool, device=loss.device)
            gone[loss.flatten().argsort(stable=True)[:count]] = True
            return gone.view_as(loss)
        gone = torch.zeros_like(loss, dtype=torch.bool)
        whole = loss.shape[1] - loss.shape[1] % self.of
        groups = loss[:, :whole].reshape(-1, self.of)
        least = groups.argsort(dim=1, stable=True)[:, : self.of - self.keep]
        gone[:, :whole] = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, least, True).view(len(loss), whole)
        return gone


def make_sparse(
    W: Float[Tensor, "o d"],
    C: Float[Tensor, "d d"],
    pattern: Pattern,
    *,
    damping: float = DAMPING,
) -> Float[Tensor, "o d"]:
    """Ŵ with zeros where the pattern says, the rest refitted in the metric of C = Σ x xᵀ / n. Cost d³ + o d²."""
    W, U = W.double(), damped_root(C.to(W.device), damping)
    block = whole_groups(pattern.of or 1)  # a group across the border of a block would be chosen from stale weights
    mask = _Mask(pattern, U, block)
    return compensate(W, U, lambda j, now: now[:, j].masked_fill(mask.at(j, now), 0.0), block=block)[0]


class _Mask:
    """What is zero among the columns at hand, chosen anew whenever the next few are reached."""

    def __init__(self, pattern: Pattern, U: Tensor, block: int) -> None:
        self.pattern, self.step, self.diagonal = pattern, pattern.of or block, U.diagonal()
        self.gone = torch.zeros(0)

    def at(self, j: int, W: Tensor) -> Bool[Tensor, " o"]:
        """The column j of the mask; `W` is the weight as it is now."""
        if j % self.step == 0:
            part = slice(j, j + self.step)
            self.gone = self.pattern.choose((W[:, part] / self.diagonal[part]).square())
        return self.gone[:, j % self.step]

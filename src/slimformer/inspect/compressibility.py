"""What weights alone say about how far a layer could be cut, and what random weights of its shape would say.

For every product and matrix of a block the least rank that keeps 95 % of Σσ², and from it the share of its parameters
that rank would need: r/d for the products of a head (2 D r in place of 2 D d), min(1, r (m + n) / m n) for a matrix
m × n. The estimate of a layer is their mean, weighted by parameters. It knows nothing of the data, and so nothing of
which directions are used: an estimate, and mostly a pessimistic one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from slimformer.inspect.weights import BlockWeights, gaussian_matrix, gaussian_product
from slimformer.linalg.spectra import effective_rank, rank_at, stable_rank

SHARE = 0.95


@dataclass(frozen=True)
class Spread:
    """How many directions a group of spectra needs: ranks are means over heads, and shares of `width`."""

    width: int
    effective_rank: float
    stable_rank: float
    rank90: float
    rank95: float
    rank99: float
    keep: float  # share of the parameters that rank95 would need
    keep_random: float  # the same for Gaussian weights of the same shape

    def to_json(self) -> dict[str, float]:
        return {name: round(float(value), 5) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Compressibility:
    """Of one block: by group of weights, and the mean weighted by parameters."""

    block: int
    groups: dict[str, Spread]
    keep: float
    keep_random: float
    neurons: float  # share of the neurons that hold 95 % of Σ (‖in‖ ‖out‖)²
    heads: float  # share of the heads that hold 95 % of Σ ‖W_vo‖²

    def to_json(self) -> dict[str, Any]:
        """As `slimformer inspect --json` prints it."""
        shares = {name: round(getattr(self, name), 5) for name in ("keep", "keep_random", "neurons", "heads")}
        groups = {name: spread.to_json() for name, spread in self.groups.items()}
        return {"block": self.block, **shares, "groups": groups}


def compressibility(weights: BlockWeights, hidden: int) -> Compressibility:
    """From the spectra of a block's weights."""
    groups: dict[str, Spread] = {}
    sizes: dict[str, int] = {}
    for name, σ in (("qk", weights.qk), ("vo", weights.vo)):
        heads, rank = σ.shape
        if heads and rank:
            groups[name] = _spread(σ, gaussian_product(rank, hidden)[None], lambda r, d=rank: r / d)
            sizes[name] = (heads + weights.kv_heads) * rank * hidden
    for name, σ in weights.ffn.items():
        m, n = weights.shapes[name]
        if m and n:
            cost = (m + n) / (m * n)
            groups[name] = _spread(σ[None], gaussian_matrix(m, n)[None], lambda r, c=cost: min(1.0, r * c))
            sizes[name] = m * n
    total = max(1, sum(sizes.values()))
    keep, random = (
        sum(getattr(groups[g], part) * sizes[g] for g in groups) / total for part in ("keep", "keep_random")
    )
    return Compressibility(
        weights.block, groups, keep, random, _concentration(weights.neurons), _concentration(weights.vo.norm(dim=1))
    )


def _spread(σ: Float[Tensor, "h d"], random: Float[Tensor, "1 d"], price: Any) -> Spread:
    d = σ.shape[1]
    r90, r95, r99 = (float(rank_at(σ, share).mean()) / d for share in (0.9, SHARE, 0.99))
    keep, null = (float(sum(price(float(r)) for r in rank_at(x, SHARE)) / len(x)) for x in (σ, random))
    return Spread(d, float(effective_rank(σ).mean()) / d, float(stable_rank(σ).mean()) / d, r90, r95, r99, keep, null)


def _concentration(worth: Float[Tensor, " n"]) -> float:
    """The share of units that holds 95 % of Σ worth²; nothing has no units."""
    if not len(worth):
        return 0.0
    return float(rank_at(worth.sort(descending=True).values, SHARE)) / len(worth)

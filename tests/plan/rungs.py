"""Ladders made by hand: sites without a model, harm as a table."""

from __future__ import annotations

from collections.abc import Sequence

from slimformer.decompose import Curve
from slimformer.models import Site
from slimformer.models.family import AttentionPart, FeedForwardPart
from slimformer.plan.allocate import Sizes
from slimformer.plan.cost import Size
from slimformer.plan.profile import Ladder


def ladder(
    block: int,
    harm: Sequence[float],
    *,
    kind: str = "ffn.hidden",
    macs: int = 1,
    pivots: Sequence[float] = (),
    tail: Sequence[float] = (),
) -> Ladder:
    """`harm` at 0, 1, … units, none at full size (the smallest size is 1); `macs` is the price of a unit."""
    units = len(harm)
    heads = AttentionPart("q", "k", "v", "o", "head_dim", "heads")
    part = heads if kind == "attn.heads" else FeedForwardPart(("up",), "down", "neurons")
    site = Site(f"blocks.{block}.{kind}", kind, block, units, 1, 1, 1, (), "", False, part)  # type: ignore[arg-type]
    sizes = tuple(Size(k, k) for k in range(1, units + 1))
    prices = tuple(macs * size.units for size in sizes)
    steps, left = tuple(range(units + 1)), (*map(float, harm), 0.0)
    curve = Curve("interpolative", steps[:-1], steps, steps, left, left, left, tuple(map(float, pivots)), tuple(tail))
    return Ladder(site, sizes, prices, left[1:], curve)


def spent(ladders: Sequence[Ladder], sizes: Sizes) -> int:
    return sum(rung.cost[rung.sizes.index(sizes[rung.site.name])] for rung in ladders)


def harm_of(ladders: Sequence[Ladder], sizes: Sizes) -> float:
    return sum(rung.harm[rung.sizes.index(sizes[rung.site.name])] for rung in ladders)

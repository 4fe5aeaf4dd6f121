"""Allocation where some parts may be cut in one of several ways: the attention of a block by whole heads or by ranks.

A way is a set of ladders that are cut together; all ways of a part cost the same when nothing is cut. For a price λ of
one unit of cost every ladder takes the size of least harm + λ cost, and every part the way with the least sum. Raising
λ until the budget holds solves the Lagrangian relaxation of the problem. The ways found near that λ, and each way taken
throughout, are then spent by `greedy` to the last unit, and the one of least total harm is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from slimformer.plan.allocate import Sizes, greedy
from slimformer.plan.profile import Ladder

Way = tuple[Ladder, ...]
STEPS = 60  # of bisection
NEAR = (0.5, 0.8, 1.0, 1.25, 2.0)  # multiples of the price at which ways are looked for, too


def greedy_ways(fixed: Sequence[Ladder], parts: Sequence[Sequence[Way]], *, budget: int) -> Sizes:
    """Least total harm over sizes and ways; what belongs to ways not taken keeps its full size.

    Cost: a bisection and a few allocations, milliseconds.
    """
    price = _price(fixed, parts, budget)
    candidates = [_ways(parts, factor * price) for factor in NEAR]
    candidates += [[part[min(n, len(part) - 1)] for part in parts] for n in range(max(map(len, parts), default=0))]
    best: tuple[float, Sizes] | None = None
    for ways in _distinct(candidates):
        ladders = [*fixed, *itertools.chain.from_iterable(ways)]
        if sum(ladder.cost[0] for ladder in ladders) > budget:
            continue
        sizes = greedy(ladders, budget=budget)
        harm = sum(ladder.harm[ladder.sizes.index(sizes[ladder.site.name])] for ladder in ladders)
        if best is None or harm < best[0]:
            best = harm, sizes
    assert best is not None, "the smallest sizes were checked against the budget"
    whole = {ladder.site.name: ladder.sizes[-1] for part in parts for way in part for ladder in way}
    return {**whole, **best[1]}


def _price(fixed: Sequence[Ladder], parts: Sequence[Sequence[Way]], budget: int) -> float:
    """The least λ whose choices keep within the budget, to many digits."""
    everything = [*fixed, *(ladder for part in parts for way in part for ladder in way)]
    high = 1e-30 + max((ladder.harm[0] for ladder in everything), default=1.0)
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        ways = _ways(parts, middle)
        spent = sum(_at(ladder, middle)[1] for ladder in [*fixed, *itertools.chain.from_iterable(ways)])
        low, high = (low, middle) if spent <= budget else (middle, high)
    return high


def _ways(parts: Sequence[Sequence[Way]], price: float) -> list[Way]:
    return [min(part, key=lambda way: sum(_at(ladder, price)[0] for ladder in way)) for part in parts]


def _at(ladder: Ladder, price: float) -> tuple[float, int]:
    """Least harm + λ cost of a ladder, and the cost there."""
    return min((harm + price * cost, cost) for harm, cost in zip(ladder.harm, ladder.cost, strict=True))


def _distinct(candidates: Sequence[list[Way]]) -> list[list[Way]]:
    seen: dict[tuple[str, ...], list[Way]] = {}
    for ways in candidates:
        seen.setdefault(tuple(ladder.site.name for way in ways for ladder in way), ways)
    return list(seen.values())

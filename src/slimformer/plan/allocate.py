"""How a budget is spread over sites. Each way is a function from ladders to sizes; none sees a model.

`uniform` keeps the same share everywhere. `greedy` minimises the sum of expected harm: on lower convex hulls the
best spending of a budget is to buy, again and again, the step with the largest fall of harm per unit of cost (exact
up to one step, because the hull is the Lagrangian relaxation of the problem). `plain` searches the sizes that are the
same in every block.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

from slimformer.errors import BudgetOutOfReach
from slimformer.messages.words import option
from slimformer.plan.budget import Budget, require_fraction
from slimformer.plan.cost import Size
from slimformer.plan.profile import Ladder

Sizes = dict[str, Size]


def require_reachable(budget: Budget, dense: int, least: int, *, plain: bool) -> int:
    """The budget as a price; refuse what is not a fraction, and what even the smallest sizes would exceed."""
    require_fraction(budget.fraction, budget.by)
    if least > budget.fraction * dense:
        cut = "with uniform sizes the stock config can say (plain)" if plain else "in the ragged format"
        hint = f"; {option('format', 'ragged')} can go lower" if plain else ""
        minimum = math.ceil(1000 * least / dense) / 1000  # rounded up, so that asking for it works
        raise BudgetOutOfReach(f"{budget} cannot be reached {cut}: the minimum for this model is {minimum:.3f}{hint}")
    return int(budget.fraction * dense)


def uniform(ladders: Sequence[Ladder], *, budget: int) -> Sizes:
    """The same share everywhere; what rounding leaves of the budget goes where it removes most harm."""
    return top_up(ladders, even(ladders, budget=budget), budget)


def even(ladders: Sequence[Ladder], *, budget: int) -> Sizes:
    """The same share everywhere: of all head counts the one nearest to the share of neurons the budget then leaves."""
    heads, neurons = by_kind(ladders)
    shares = _shares(neurons)
    best: tuple[float, Sizes] | None = None
    for share in _shares(heads):
        at_heads = [_at_share(ladder, share) for ladder in heads]
        left = budget - sum(ladder.cost[i] for ladder, i in zip(heads, at_heads, strict=True))
        at_neurons = _fill(neurons, shares, left)
        if at_neurons is None:
            continue
        neurons_left = sum(ladder.sizes[i].units for ladder, i in zip(neurons, at_neurons, strict=True))
        distance = abs(neurons_left / max(1, sum(ladder.site.units for ladder in neurons)) - share)
        if best is None or distance < best[0]:
            best = distance, _sizes([*heads, *neurons], [*at_heads, *at_neurons])
    assert best is not None, "the smallest sizes were checked against the budget"
    return best[1]


def greedy(ladders: Sequence[Ladder], *, budget: int) -> Sizes:
    """Least total harm: buy hull segments by falling harm per MAC until the budget is spent, then fill the rest."""
    at = {ladder.site.name: 0 for ladder in ladders}
    left = budget - sum(ladder.cost[0] for ladder in ladders)
    steps = [step for ladder in ladders for step in _hull_steps(ladder)]
    for _, name, index, macs in sorted(steps, key=lambda step: -step[0]):
        if macs > left:
            break
        at[name] = index
        left -= macs
    sizes = {ladder.site.name: ladder.sizes[at[ladder.site.name]] for ladder in ladders}
    return top_up(ladders, sizes, budget)


def plain(ladders: Sequence[Ladder], *, budget: int) -> Sizes:
    """Least total harm among sizes that are the same wherever the config has one key for them: in every block."""
    *others, last = _by_key(ladders)
    costs = [sum(each) for each in zip(*(ladder.cost for ladder in last), strict=True)]
    harms = [sum(each) for each in zip(*(ladder.harm for ladder in last), strict=True)]
    best: tuple[float, Sizes] | None = None
    for rungs in itertools.product(*(range(len(group[0].sizes)) for group in others)):
        at = [(ladder, i) for group, i in zip(others, rungs, strict=True) for ladder in group]
        left = budget - sum(ladder.cost[i] for ladder, i in at)
        fits = [j for j, cost in enumerate(costs) if cost <= left]
        if not fits:
            continue
        j = min(fits, key=lambda j: (harms[j], -j))  # paths: more may be more harm
        harm = sum(ladder.harm[i] for ladder, i in at) + harms[j]
        if best is None or harm < best[0]:
            at += [(ladder, j) for ladder in last]
            best = harm, {ladder.site.name: ladder.sizes[i] for ladder, i in at}
    assert best is not None, "the smallest sizes were checked against the budget"
    return best[1]


def _by_key(ladders: Sequence[Ladder]) -> list[list[Ladder]]:
    """Ladders that must take the same size, heads before neurons."""
    groups: dict[tuple[str, ...], list[Ladder]] = {}
    for ladder in itertools.chain(*by_kind(ladders)):
        groups.setdefault(tuple(ladder.site.part.keys.values()) or (ladder.site.part.name,), []).append(ladder)
    return list(groups.values())


def top_up(ladders: Sequence[Ladder], sizes: Sizes, budget: int) -> Sizes:
    """Spend what is left of the budget one rung at a time, each where it removes most harm per MAC."""
    at = {ladder.site.name: ladder.sizes.index(sizes[ladder.site.name]) for ladder in ladders}
    left = budget - sum(ladder.cost[at[ladder.site.name]] for ladder in ladders)
    while True:
        gains = []
        for ladder in ladders:
            i = at[ladder.site.name]
            if i + 1 < len(ladder.sizes) and (macs := ladder.cost[i + 1] - ladder.cost[i]) <= left:
                gains.append(((ladder.harm[i] - ladder.harm[i + 1]) / macs, ladder.site.name, macs))
        if not gains:
            return {ladder.site.name: ladder.sizes[at[ladder.site.name]] for ladder in ladders}
        _, name, macs = max(gains)
        at[name] += 1
        left -= macs


def exchange(ladders: Sequence[Ladder], sizes: Sizes, budget: int) -> Sizes:
    """Buy a rung that is dearer than what is left, and give back rungs elsewhere for it, as long as total harm falls.

    Whole heads and key/value groups are dear: where all neurons are kept, up to a head of the budget is left, and a
    head may be worth more than the neurons that pay the rest of its price.
    """
    at = {ladder.site.name: ladder.sizes.index(sizes[ladder.site.name]) for ladder in ladders}
    left = budget - sum(ladder.cost[at[ladder.site.name]] for ladder in ladders)
    while True:
        purchases = [_purchase(ladders, at, ladder, left) for ladder in ladders]
        better = [purchase for purchase in purchases if purchase is not None and purchase[0] < 0]
        if not better:
            return {ladder.site.name: ladder.sizes[at[ladder.site.name]] for ladder in ladders}
        _, left, at = min(better, key=lambda purchase: purchase[0])


def _purchase(
    ladders: Sequence[Ladder], at: dict[str, int], bought: Ladder, left: int
) -> tuple[float, int, dict[str, int]] | None:
    """The next rung of one ladder, paid by the rungs elsewhere whose loss is least for what they pay: the change of
    harm, what is left then, and where every ladder stands."""
    i = at[bought.site.name]
    if i + 1 == len(bought.cost):
        return None
    harm, left = bought.harm[i + 1] - bought.harm[i], left - (bought.cost[i + 1] - bought.cost[i])
    at = {**at, bought.site.name: i + 1}
    while left < 0:
        given = [other for other in ladders if other is not bought and at[other.site.name]]
        if not given:
            return None
        losses = [other.harm[at[other.site.name] - 1] - other.harm[at[other.site.name]] for other in given]
        prices = [other.cost[at[other.site.name]] - other.cost[at[other.site.name] - 1] for other in given]
        k = min(range(len(given)), key=lambda k: losses[k] / min(prices[k], -left))  # more than is owed buys nothing
        harm, left = harm + losses[k], left + prices[k]
        at[given[k].site.name] -= 1
    return harm, left, at


def _hull_steps(ladder: Ladder) -> list[tuple[float, str, int, int]]:
    """Segments of the lower convex hull of harm over MACs: (fall of harm per MAC, site, rung reached, MACs)."""
    hull: list[int] = []
    for i in range(len(ladder.cost)):
        while len(hull) > 1 and _slope(ladder, hull[-2], hull[-1]) >= _slope(ladder, hull[-1], i):
            hull.pop()
        hull.append(i)
    pairs = itertools.pairwise(hull)
    return [(-_slope(ladder, a, b), ladder.site.name, b, ladder.cost[b] - ladder.cost[a]) for a, b in pairs]


def _slope(ladder: Ladder, a: int, b: int) -> float:
    return (ladder.harm[b] - ladder.harm[a]) / (ladder.cost[b] - ladder.cost[a])


def by_kind(ladders: Sequence[Ladder]) -> tuple[list[Ladder], list[Ladder]]:
    heads = [ladder for ladder in ladders if ladder.site.kind == "attn.heads"]
    return heads, [ladder for ladder in ladders if ladder.site.kind == "ffn.hidden"]


def _shares(ladders: Sequence[Ladder]) -> list[float]:
    return sorted({size.units / max(1, ladder.site.units) for ladder in ladders for size in ladder.sizes})


def _at_share(ladder: Ladder, share: float) -> int:
    """The largest rung that keeps at most `share` of the units (the smallest rung if none does)."""
    most = share * ladder.site.units + 1e-9
    if ladder.site.group > 1:  # dearer sizes may have fewer heads, in more groups
        fits = [i for i, size in enumerate(ladder.sizes) if size.units <= most]
        return max(fits, key=lambda i: (ladder.sizes[i].units, i), default=0)
    return max(0, bisect.bisect_right(ladder.sizes, most, key=lambda size: size.units) - 1)


def _fill(neurons: Sequence[Ladder], shares: Sequence[float], budget: int) -> list[int] | None:
    """The largest common share of neurons within the budget; costs grow with the share, so it is found by halving."""

    def at(share: float) -> list[int]:
        return [_at_share(ladder, share) for ladder in neurons]

    def cost(share: float) -> int:
        return sum(ladder.cost[i] for ladder, i in zip(neurons, at(share), strict=True))

    if sum(ladder.cost[0] for ladder in neurons) > budget:
        return None
    fitting = bisect.bisect_right(shares, budget, key=cost)
    return at(shares[fitting - 1]) if fitting else [0] * len(neurons)


def _sizes(ladders: Sequence[Ladder], at: Sequence[int]) -> Sizes:
    return {ladder.site.name: ladder.sizes[i] for ladder, i in zip(ladders, at, strict=True)}

"""From curves to ladders: what every site may be cut to, what that costs, and how much it is expected to hurt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from slimformer.decompose import Curve, Width, method
from slimformer.decompose.groups import group_curves, group_sizes, queries_each
from slimformer.decompose.reduction import legal_sizes
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture, Site
from slimformer.plan.cost import Size, site_cost
from slimformer.plan.curves import curve_of, error_left, group_name, group_names
from slimformer.plan.ffn import Rung, envelope, path_sizes

Price = Callable[[Site, Size, int], int]  # of a site at a size and a sequence length


@dataclass(frozen=True)
class Prices:
    """What sizes cost at a sequence length, MACs where nothing else is said, and what an error at each site counts
    for."""

    seq_len: int
    weights: Mapping[str, float] = field(default_factory=dict)
    price: Price | None = None

    def of(self, site: Site, size: Size) -> int:
        """The price of a site at a size."""
        return (self.price or _macs)(site, size, self.seq_len)

    def weight(self, site: Site) -> float:
        """What turns the error of a site into harm to the whole."""
        return self.weights.get(site.name, 1.0)


@dataclass(frozen=True)
class Legal:
    """Which sizes sites may take: neurons in multiples, sizes a stock config can say, parts without neurons, how
    feed-forward parts may be cut (`CutSettings.ffn`), and what the width of all heads is a multiple of."""

    multiple_of: int = 8
    plain: bool = False
    allow_empty: bool = False
    ffn: str = "neurons"
    columns: int = 1


@dataclass(frozen=True)
class Ladder:
    """The sizes a site may take, ascending, with their price (see `Budget`) and the expected harm at each."""

    site: Site
    sizes: tuple[Size, ...]
    cost: tuple[int, ...]
    harm: tuple[float, ...]
    curve: Curve
    others: tuple[Site, ...] = ()  # that must keep as many units: the other experts of its block

    @property
    def sites(self) -> tuple[Site, ...]:
        """All that take a size together."""
        return (self.site, *self.others)

    def spread(self, size: Size) -> dict[str, Size]:
        """A size for all sites of the ladder."""
        return {site.name: size for site in self.sites}


def site_curves(
    site: Site, W: Tensor, moments: Mapping[str, Moments], *, selector: str, ridge: float, absorb_mean: bool
) -> dict[str, Curve]:
    """The error left at every size of one site, measured on the select split, by the names of `plan.curves`.

    Cost: see the method and `decompose.groups`.
    """
    width = site_width(site, W, moments, absorb_mean=absorb_mean)
    first = method(selector)(width, ridge=ridge)
    whole = group_curves(width, first, ridge=ridge)
    return {site.name: first, **{group_name(site.name, queries): curve for queries, curve in whole.items()}}


def blank_curves(site: Site, selector: str) -> dict[str, Curve]:
    """Curves of a site that has seen no data: no size is better than another."""
    chains = {site.name: legal_sizes(site.units, site.group)}
    for queries in queries_each(site.units, site.group):
        chains[group_name(site.name, queries)] = group_sizes(site.units, site.group, queries)
    order = tuple(range(site.units))
    return {
        name: Curve(selector, order, sizes, groups, *[(0.0,) * len(sizes)] * 3)
        for name, (sizes, groups) in chains.items()
    }


def site_width(site: Site, W: Tensor, moments: Mapping[str, Moments], *, absorb_mean: bool) -> Width:
    """A site as the decompositions see it."""
    fit = moments["fit"]
    bias = site.reader_bias and absorb_mean
    return Width(site.name, W.cpu(), fit, moments.get("select", fit), site.unit, site.group, bias)


def ladders(architecture: Architecture, curves: Mapping[str, Curve], prices: Prices, legal: Legal) -> list[Ladder]:
    """Legal sizes of every site, with their price and their harm to the whole; one ladder for all experts of a block.

    Where a linear path beside neurons is allowed, every price has the size of least harm.
    """
    out = []
    for site in architecture:
        weight = prices.weight(site)
        rungs = [
            (prices.of(site, size), error_left(curves, site.name, size) * weight, size)
            for size in site_sizes(architecture, site, legal)
            if curve_of(curves, site.name, size) is not None
        ]
        if group_names(site) & curves.keys():
            rungs = _by_price(rungs, plain=legal.plain)
        if any(size.rank for _, _, size in rungs):
            rungs = envelope(rungs, plain=legal.plain)
        cost, harm, sizes = zip(*rungs, strict=True)
        out.append(Ladder(site, sizes, rising(cost), harm, curves[site.name]))
    alike: dict[str, list[Ladder]] = {}
    for ladder in out:
        alike.setdefault(ladder.site.alike, []).append(ladder)
    return [each[0] if len(each) == 1 else _together(each) for each in alike.values()]


def _together(several: Sequence[Ladder]) -> Ladder:
    """The ladder of sites that must keep as many units each: prices and harms add up, and so do errors of curves."""
    first, curves = several[0], [ladder.curve for ladder in several]
    sizes = [size for size in first.sizes if all(size in ladder.sizes for ladder in several)]

    at = [[ladder.sizes.index(size) for size in sizes] for ladder in several]
    cost = [[ladder.cost[i] for i in each] for ladder, each in zip(several, at, strict=True)]
    harm = [[ladder.harm[i] for i in each] for ladder, each in zip(several, at, strict=True)]
    curve = replace(
        first.curve,
        fit=_added([curve.fit for curve in curves], 1),
        held=_added([curve.held for curve in curves], 1),
        floor=_added([curve.floor for curve in curves], 1),
        pivots=_added([curve.pivots for curve in curves], 2),
        tail=_added([curve.tail for curve in curves], 2),
    )
    prices, others = tuple(map(sum, zip(*cost, strict=True))), tuple(ladder.site for ladder in several[1:])
    return Ladder(first.site, tuple(sizes), prices, _added(harm, 1), curve, others)


def _added(rows: Sequence[Sequence[float]], power: int) -> tuple[float, ...]:
    """Sums of a row and another, value by value; of norms their squares add up."""
    return tuple(math.pow(sum(x**power for x in values), 1 / power) for values in zip(*rows, strict=True))


def _by_price(rungs: Sequence[Rung], *, plain: bool) -> list[Rung]:
    """Heads ascending by price; without sizes that are no better than a cheaper one, unless they keep more heads.

    Plain sizes must be the same in every block, so there none is left out. The last, which cuts nothing, always stays.
    """
    if plain:
        return sorted(rungs, key=lambda each: (each[0], each[2].units))
    ordered = sorted(rungs, key=lambda each: (each[0], each[1], -each[2].units))
    out = ordered[:1]
    for rung in ordered[1:]:
        better = (rung[1], -rung[2].units) < (out[-1][1], -out[-1][2].units)
        if better or rung is ordered[-1]:
            out.append(rung)
    return out


def rising(prices: Sequence[int]) -> tuple[int, ...]:
    """Prices that rise with the size. Exact ones do; measured ones may not, and a larger size is never cheaper."""
    return tuple(itertools.accumulate(prices, lambda before, now: max(now, before + 1)))


def _macs(site: Site, size: Size, seq_len: int) -> int:
    return site_cost(site, size, seq_len).macs


def site_sizes(architecture: Architecture, site: Site, legal: Legal) -> tuple[Size, ...]:
    """Sizes a site may take, ascending; then those with a linear path beside neurons.

    Heads: first those that keep all key/value heads or one query for each, then those that lose some whole.
    """
    paths = path_sizes(site, ffn=legal.ffn, multiple_of=legal.multiple_of, plain=legal.plain)
    alone = tuple(
        Size(units, groups) for units, groups in head_sizes(site) if _is_legal(architecture, site, units, legal)
    )
    return (*(alone[-1:] if paths and legal.ffn != "best" else alone), *paths)


def head_sizes(site: Site) -> list[tuple[int, int]]:
    """Units and key/value heads that may be kept, as far as the groups are concerned."""
    chains = [legal_sizes(site.units, site.group)]
    chains += [group_sizes(site.units, site.group, q) for q in queries_each(site.units, site.group)]
    return [size for chain in chains for size in zip(*chain, strict=True)]


def least_cost(architecture: Architecture, prices: Prices, legal: Legal) -> int:
    """The price of all blocks when every site has its smallest legal size: known before any data are read."""
    return sum(min(prices.of(site, size) for size in site_sizes(architecture, site, legal)) for site in architecture)


def _is_legal(architecture: Architecture, site: Site, units: int, legal: Legal) -> bool:
    if units == site.units:
        return True
    if site.stays:
        return False
    if site.kind == "attn.heads":  # stock attention cannot run without heads
        even = units > 0 and units * site.unit % legal.columns == 0
        return even and (not legal.plain or _plain_heads(architecture, site, units))
    if legal.plain and not site.part.keys:
        return False
    if units == 0:
        return legal.allow_empty and not legal.plain and site.feed_forward.may_be_empty
    return units % min(legal.multiple_of, site.units) == 0 if site.units > legal.multiple_of else True


def _plain_heads(architecture: Architecture, site: Site, heads: int) -> bool:
    """Can the stock config of this model say "that many heads of the old width"?"""
    part = site.attention
    return part.plain_heads and (architecture.model_type not in part.divides_hidden or site.outer % heads == 0)

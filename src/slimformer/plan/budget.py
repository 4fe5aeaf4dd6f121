"""A budget: which fraction to keep, and of what. Every price is a whole number per site and size, so one allocation
serves them all: MACs per token, parameters, or nanoseconds measured on this machine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slimformer.errors import BudgetOutOfReach
from slimformer.messages.words import either, option
from slimformer.models import Architecture, Site
from slimformer.plan.cost import Size, block_cost, full_size, site_cost

Measure = Literal["macs", "params", "latency"]
MEASURES: tuple[Measure, ...] = ("macs", "params", "latency")
BUDGETS = (*MEASURES, "max_kl", "size")  # all that `compress` takes
PERCENT = 5  # from here on a budget that is no fraction was meant in per cent; nobody wants 1.5 %
NOUNS = {"macs": "MACs", "params": "block parameters", "latency": "measured block latency"}
Point = tuple[int, int, int]  # units, groups, nanoseconds


@dataclass(frozen=True)
class LatencyTable:
    """Nanoseconds of a site at some of its sizes, by shape of the site (see `shape`), measured on one machine."""

    machine: str
    seq_len: int
    points: Mapping[str, tuple[Point, ...]]

    def price(self, site: Site, size: Size) -> int:
        """Between measured numbers of units: the straight line."""
        points = self.points[shape(site)]
        exact = {(units, groups): ns for units, groups, ns in points}
        if (size.units, size.groups) in exact:
            return exact[size.units, size.groups]
        at = [units for units, _, _ in points]
        j = min(max(bisect_left(at, size.units), 1), len(at) - 1)
        (a, _, low), (b, _, high) = points[j - 1], points[j]
        return round(low + (high - low) * (size.units - a) / (b - a))


def shape(site: Site) -> str:
    """What the latency of a site depends on: sites of the same shape share their measurements."""
    return f"{site.kind}:{site.units}x{site.unit}/{site.group}:{site.outer}:{len(site.writers)}"


@dataclass(frozen=True)
class Budget:
    """Keep `fraction` of the blocks' MACs, parameters or latency."""

    fraction: float
    by: Measure = "macs"
    table: LatencyTable | None = field(default=None, repr=False)

    def price(self, site: Site, size: Size, seq_len: int) -> int:
        """What a site costs at a size."""
        if self.by == "latency":
            if self.table is None:
                raise BudgetOutOfReach("a latency budget needs a table measured on this machine")
            return self.table.price(site, size)
        cost = site_cost(site, size, seq_len)
        return cost.macs if self.by == "macs" else cost.params

    def spent(self, architecture: Architecture, sizes: Mapping[str, Size], seq_len: int) -> int:
        """What all blocks cost at these sizes."""
        if self.by == "latency":
            return sum(self.price(site, sizes[site.name], seq_len) for site in architecture)
        cost = block_cost(architecture, seq_len, sizes)
        return cost.macs if self.by == "macs" else cost.params

    def dense(self, architecture: Architecture, seq_len: int) -> int:
        """What all blocks cost as they are."""
        return sum(self.price(site, full_size(site), seq_len) for site in architecture)

    def __str__(self) -> str:
        return option(self.by, self.fraction)


def budget_of(**given: float | None) -> Budget:
    """The one budget that was given; the names are those on offer (`MEASURES`, or some of them)."""
    by = require_one(given)
    fraction = given[by]
    assert fraction is not None
    require_fraction(fraction, by)
    return Budget(fraction, by)  # type: ignore[arg-type]


def require_one(given: Mapping[str, object]) -> str:
    """The name of the one budget that was given; refused where there is none, or more than one."""
    asked = [name for name, value in given.items() if value is not None]
    if len(asked) != 1:
        found = " and ".join(option(name, given[name]) for name in asked) or "none"
        raise BudgetOutOfReach(f"one budget is needed: {either(*given)} (found {found})")
    return asked[0]


def require_fraction(fraction: float, by: str = "macs") -> None:
    """Refuse what is not a fraction to keep; percents are the usual slip."""
    if not 0 < fraction <= 1:
        meant = f" (did you mean {fraction / 100:g}?)" if PERCENT <= fraction <= 100 else ""
        raise BudgetOutOfReach(
            f"{option(by, fraction)} is not a fraction of the {NOUNS[by]} to keep; give a number above 0, up to "
            f"1{meant}"
        )

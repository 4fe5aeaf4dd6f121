"""A budget: which fraction to keep, and of what. Every price is a whole number per site and size, so one allocation
serves them all: MACs per token, parameters, or nanoseconds measured on this machine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from slimformer.errors import BudgetOutOfReach
from slimformer.messages.words import option
from slimformer.models import Architecture, Site
from slimformer.plan.asked import Measure, one_fraction
from slimformer.plan.asked import require_fraction as require_fraction
from slimformer.plan.asked import require_one as require_one
from slimformer.plan.cost import Size, block_cost, full_size, site_cost

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
    by, fraction = one_fraction(given)
    return Budget(fraction, by)  # type: ignore[arg-type]

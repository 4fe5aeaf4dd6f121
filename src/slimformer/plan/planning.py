"""From error curves and a budget to a plan, or to why there is none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slimformer.decompose import Curve
from slimformer.errors import BudgetOutOfReach, RankTooHigh
from slimformer.messages.words import option
from slimformer.models import Architecture, Site
from slimformer.plan.allocate import Sizes, by_kind, even, exchange, greedy, plain, require_reachable, uniform
from slimformer.plan.asked import require_format
from slimformer.plan.budget import Budget
from slimformer.plan.choice import greedy_ways
from slimformer.plan.cost import Size, full_size
from slimformer.plan.curves import too_few_tokens, without_groups
from slimformer.plan.plan import Edit, Plan, kept_fractions
from slimformer.plan.profile import Ladder, Legal, Prices, ladders, least_cost
from slimformer.plan.ranks import rank_ways
from slimformer.plan.settings import CutSettings
from slimformer.plan.stat import stat_bert, stat_opt

ALLOCATIONS: dict[str, Callable[..., Sizes]] = {
    "uniform": uniform,
    "greedy": greedy,
    "stat-bert": stat_bert,
    "stat-opt": stat_opt,
    "even": even,
    "plain": plain,
}
NEAR_ENOUGH = 0.05  # of the dense price: further below its budget no plan is made for want of tokens


@dataclass(frozen=True)
class Terms:
    """What a plan is asked for. `weights` turn the error of a site into harm at the outputs; `ranks` are the sites by
    which attention may be cut in place of its heads, if the settings allow it."""

    budget: Budget
    settings: CutSettings
    seq_len: int
    weights: Mapping[str, float] = field(default_factory=dict)
    format: str = "ragged"
    ranks: Sequence[Site] = ()


def allocate(architecture: Architecture, curves: Mapping[str, Curve], terms: Terms, *, fingerprint: str = "") -> Plan:
    """The plan that keeps within a budget, met from below: of least harm at the outputs, summed over sites.

    Cost: milliseconds, no model, no data.
    """
    budget, settings, seq_len = terms.budget, terms.settings, terms.seq_len
    if settings.ffn == "best" and not any("+" in name for name in curves):  # so the minimum named can be reached
        settings = settings.model_copy(update={"ffn": "neurons"})
        terms = replace(terms, settings=settings)
    limit = check_budget(architecture, budget, seq_len=seq_len, settings=settings, format=terms.format)
    options = choices(architecture, curves, terms)
    few = too_few_tokens(architecture, curves)
    if few and options.least > limit:
        raise _unfit(budget, options.least / budget.dense(architecture, seq_len))
    if options.parts:
        require_reachable(budget, budget.dense(architecture, seq_len), options.least, plain=False)
    sizes, edits = _edits(architecture, terms.ranks, curves, spend(options, limit))
    if few:
        _require_near(architecture, sizes, budget, seq_len, limit)
    kept_macs, kept_params = kept_fractions(architecture, sizes, seq_len)
    return Plan(
        recipe=settings.name, budget=budget.fraction, by=budget.by, macs=kept_macs, params=kept_params,
        seq_len=seq_len, format=terms.format, ridge=settings.ridge, absorb_mean=settings.absorb_mean,
        fingerprint=fingerprint, edits=edits, metric=settings.metric,
    )  # fmt: skip


def _require_near(architecture: Architecture, sizes: Sizes, budget: Budget, seq_len: int, limit: int) -> None:
    """Refuse a plan that stays far below its budget because what lies between cannot be fitted."""
    spent = budget.spent(architecture, sizes, seq_len)
    dense = budget.dense(architecture, seq_len)
    if limit - spent > NEAR_ENOUGH * dense:
        raise _unfit(budget, spent / dense)


def _unfit(budget: Budget, nearest: float) -> RankTooHigh:
    return RankTooHigh(
        f"{budget}: the calibration tokens are too few to fit sizes near it (the nearest keeps {nearest:.3f}); "
        f"give more with {option('tokens')}"
    )


@dataclass(frozen=True)
class Choices:
    """What a plan is chosen from: how the budget is spread, the ladders of sites that are cut in one way, and for every
    other part the ways it may be cut in."""

    allocation: str
    fixed: list[Ladder]
    parts: list[list[tuple[Ladder, ...]]]

    @property
    def least(self) -> int:
        """The price of the smallest sizes, every part cut in its cheapest way."""
        return sum(ladder.cost[0] for ladder in self.fixed) + sum(
            min(sum(ladder.cost[0] for ladder in way) for way in part) for part in self.parts
        )

    def taken(self, sizes: Sizes) -> list[Ladder]:
        """The ladders in use: those of the way in which a part is cut, of the first where it is not cut at all."""

        def is_cut(way: tuple[Ladder, ...]) -> bool:
            return any(sizes[ladder.site.name] != ladder.sizes[-1] for ladder in way)

        ways = [next(filter(is_cut, part), part[0]) for part in self.parts]
        return [*self.fixed, *itertools.chain.from_iterable(ways)]


def spend(options: Choices, budget: int) -> Sizes:
    """The sizes a price buys; where harm decides, to the last unit (`exchange`)."""
    if options.parts:
        sizes = greedy_ways(options.fixed, options.parts, budget=budget)
    else:
        sizes = ALLOCATIONS[options.allocation](options.fixed, budget=budget)
    if options.allocation == "greedy":
        sizes = {**sizes, **exchange(options.taken(sizes), sizes, budget)}
    return {**sizes, **{k: v for ladder in options.fixed for k, v in ladder.spread(sizes[ladder.site.name]).items()}}


def choices(architecture: Architecture, curves: Mapping[str, Curve], terms: Terms) -> Choices:
    """Sizes, prices and harms of every site, in the words of `allocate`."""
    budget, settings = terms.budget, terms.settings
    allocation = _allocation(settings, architecture, terms.format)
    prices = Prices(terms.seq_len, terms.weights, budget.price)
    some = without_groups(curves) if allocation.startswith("stat") else curves
    rungs = ladders(architecture, some, prices, legal_sizes_of(settings, budget, architecture, terms.format))
    if not _by_rank(settings, budget, terms.format) or not terms.ranks:
        return Choices(allocation, rungs, [])
    heads, neurons = by_kind(rungs)
    return Choices("greedy", neurons, rank_ways(heads, terms.ranks, curves, prices, attention=settings.attention))


def legal_sizes_of(settings: CutSettings, budget: Budget | None, architecture: Architecture, format: str) -> Legal:
    """Which sizes settings and format allow."""
    ffn = ffn_of(settings, budget, architecture, format)
    return Legal(settings.multiple_of, format == "plain", settings.allow_empty, ffn, settings.columns)


def _by_rank(settings: CutSettings, budget: Budget, format: str) -> bool:
    """May ranks be cut? A recipe that says `ranks` and nothing else is not given heads without a word."""
    if settings.attention == "heads":
        return False
    reasons = {
        f"{budget.by} is measured for heads": budget.by == "latency",
        "every block gets ranks of its own, which a stock config cannot say": format == "plain",
        f"the allocation {settings.allocation!r} spreads heads": settings.allocation != "greedy",
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason and settings.attention == "ranks":
        raise BudgetOutOfReach(
            f"the recipe {settings.name!r} wants attention cut by rank, but {reason}; say heads or best"
        )
    return reason is None


def ffn_of(settings: CutSettings, budget: Budget | None, architecture: Architecture, format: str) -> str:
    """How feed-forward parts may be cut. A recipe that wants linear paths is not given neurons without a word."""
    if settings.ffn == "neurons":
        return "neurons"
    reasons = {
        "latency is measured for neurons": budget is not None and budget.by == "latency",
        f"the allocation {settings.allocation!r} spreads neurons": settings.allocation != "greedy",
        "a stock config has no word for a path beside gated neurons": format == "plain"
        and any(site.gated for site in architecture),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason and settings.ffn != "best":
        raise BudgetOutOfReach(
            f"the recipe {settings.name!r} wants linear paths, but {reason}; say ffn: neurons or best"
        )
    return "neurons" if reason else settings.ffn


def _edits(
    architecture: Architecture, ranks: Sequence[Site], curves: Mapping[str, Curve], sizes: Sizes
) -> tuple[Sizes, tuple[Edit, ...]]:
    """Every site, and the ranks of the blocks that are cut by rank; sizes of the others are left out.

    Without values no score is needed: a block whose VO rank is 0 has the QK rank 0.
    """
    gone = {site.block for site in ranks if site.kind == "attn.vo" and sizes.get(site.name) == Size(0, 0)}
    sizes = {**sizes, **{site.name: Size(0, 0) for site in ranks if site.block in gone}}
    cut = {site.block for site in ranks if site.name in sizes and sizes[site.name].units < site.units}
    sites = [*architecture, *(site for site in ranks if site.block in cut)]
    sizes = {site.name: sizes.get(site.name, full_size(site)) for site in sites}
    edits = tuple(
        Edit(site.name, curves[site.name].method, size.units, site.units, size.groups, size.rank)
        for site in sites
        for size in (sizes[site.name],)
    )
    return sizes, edits


def check_budget(
    architecture: Architecture, budget: Budget, *, seq_len: int, settings: CutSettings, format: str
) -> int:
    """The budget as a price, or an error that names the minimum. Needs no data, so it is asked first."""
    require_format(format)
    _by_rank(settings, budget, format)
    is_plain = format == "plain"
    if is_plain and not architecture.blocks_alike:
        raise BudgetOutOfReach(
            f"the blocks of this model differ in size already, so plain sizes are out; use {option('format', 'ragged')}"
        )
    legal = legal_sizes_of(settings, budget, architecture, format)
    least = least_cost(architecture, Prices(seq_len, price=budget.price), legal)
    return require_reachable(budget, budget.dense(architecture, seq_len), least, plain=is_plain)


def _allocation(settings: CutSettings, architecture: Architecture, format: str) -> str:
    """The stock config can only say equal sizes, so plain has two allocations: the even share, or the least harm."""
    if format == "plain":
        return "even" if settings.allocation == "uniform" else "plain"
    if settings.allocation == "stat":
        return "stat-opt" if architecture.family.causal else "stat-bert"
    return settings.allocation

"""What to cut, as data: costs, ladders, allocations, plans, recipes."""

from collections.abc import Callable, Mapping

from slimformer.decompose import Curve
from slimformer.errors import BudgetOutOfReach
from slimformer.models import Architecture
from slimformer.models.architecture import KINDS
from slimformer.plan.allocate import Sizes, even, greedy, plain, require_reachable, uniform
from slimformer.plan.budget import Budget as Budget
from slimformer.plan.plan import Edit as Edit
from slimformer.plan.plan import Plan as Plan
from slimformer.plan.plan import kept_fractions
from slimformer.plan.profile import ladders, least_cost
from slimformer.plan.recipe import Recipe
from slimformer.plan.stat import stat_bert, stat_opt

ALLOCATIONS: dict[str, Callable[..., Sizes]] = {
    "uniform": uniform,
    "greedy": greedy,
    "stat-bert": stat_bert,
    "stat-opt": stat_opt,
}
FORMATS = ("ragged", "plain")


def allocate(
    architecture: Architecture,
    curves: Mapping[str, Curve],
    *,
    budget: Budget,
    seq_len: int,
    recipe: Recipe,
    weights: Mapping[str, float],
    format: str = "ragged",
    fingerprint: str = "",
) -> Plan:
    """The plan that keeps within a budget, met from below. Cost: milliseconds, no model, no data.

    `weights` turn the error of a site into harm at the outputs: the sum of both is what the plan is expected to do.
    """
    limit = check_budget(architecture, budget, seq_len=seq_len, recipe=recipe, format=format)
    rungs = ladders(
        architecture, curves, seq_len=seq_len, weights=weights,
        multiple_of=recipe.multiple_of, plain=format == "plain", allow_empty=recipe.allow_empty,
        price=budget.price,
    )  # fmt: skip
    sizes = _allocation(recipe, architecture, format)(rungs, budget=limit)
    edits = tuple(
        Edit(site.name, recipe.selector, sizes[site.name].units, site.units, sizes[site.name].groups)
        for site in architecture
    )
    kept_macs, kept_params = kept_fractions(architecture, sizes, seq_len)
    return Plan(
        recipe=recipe.name, budget=budget.fraction, by=budget.by, macs=kept_macs, params=kept_params,
        seq_len=seq_len, format=format, ridge=recipe.ridge, absorb_mean=recipe.absorb_mean,
        fingerprint=fingerprint, edits=edits,
    )  # fmt: skip


def check_budget(architecture: Architecture, budget: Budget, *, seq_len: int, recipe: Recipe, format: str) -> int:
    """The budget as a price, or an error that names the minimum. Needs no data, so it is asked first."""
    if format not in FORMATS:
        raise BudgetOutOfReach(f"there is no format {format!r}; choose from {', '.join(FORMATS)}")
    is_plain = format == "plain"
    if is_plain and len({(site.kind, site.units, site.group) for site in architecture}) > len(KINDS):
        raise BudgetOutOfReach(
            "the blocks of this model differ in size already, so plain sizes are out; use --format ragged"
        )
    least = least_cost(
        architecture, seq_len, multiple_of=recipe.multiple_of, plain=is_plain, allow_empty=recipe.allow_empty,
        price=budget.price,
    )  # fmt: skip
    return require_reachable(budget, budget.dense(architecture, seq_len), least, plain=is_plain)


def _allocation(recipe: Recipe, architecture: Architecture, format: str) -> Callable[..., Sizes]:
    """The stock config can only say equal sizes, so plain has two allocations: the even share, or the least harm."""
    if format == "plain":
        return even if recipe.allocation == "uniform" else plain
    if recipe.allocation == "stat":
        return stat_opt if architecture.family.causal else stat_bert
    return ALLOCATIONS[recipe.allocation]

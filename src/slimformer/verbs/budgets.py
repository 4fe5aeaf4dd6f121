"""From statistics to plans and models at any budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from slimformer.calibrate.store import Statistics
from slimformer.evaluate.assessment import describe_result
from slimformer.messages.arguments import check_arguments, instance
from slimformer.messages.progress import Progress, silent
from slimformer.models.opening import OpeningOptions
from slimformer.plan.asked import one_fraction, require_fraction
from slimformer.plan.budget import budget_of
from slimformer.plan.plan import Plan
from slimformer.recipe import RECIPE, Recipe
from slimformer.steps import frontier as front
from slimformer.steps.alternatives import alternatives
from slimformer.steps.frontier import FrontPoint
from slimformer.steps.make import make, make_plan, priced, replay
from slimformer.steps.result import Result
from slimformer.verbs.asked import (
    FRACTIONS,
    MOVED,
    STATS,
    BudgetOptions,
    Model,
    model_of,
    opened_statistics,
    started_from,
)

PLAN = instance("a Plan, or the name of a plan.json", Plan, str, Path)


class CutOptions(BudgetOptions, total=False):
    """One budget, the `recipe` whose cut is made (balanced), the `format` (ragged), and how the model is opened."""

    recipe: str | Path | Recipe
    format: str


class FrontOptions(OpeningOptions, total=False):
    """The `recipe` whose cut is planned (balanced), the `format` (ragged), and how the model is opened."""

    recipe: str | Path | Recipe
    format: str


def budget_in(given: dict[str, Any]) -> dict[str, float]:
    """The one budget among arguments given by name, taken out of them."""
    by, fraction = one_fraction({name: given.pop(name, None) for name in ("macs", "params", "latency")})
    return {by: fraction}


@check_arguments(stats=STATS, model=MOVED, recipe=RECIPE)
def plan(
    stats: str | Path | Statistics, *, model: Model | None = None, progress: Progress = silent,
    **options: Unpack[CutOptions],
) -> Plan:  # fmt: skip
    """Decide what every block keeps at one budget: `macs`, `params` or `latency`, as a fraction. Needs no data.

    Sizes kₛ are chosen so that Σ cost(s, kₛ) ≤ budget and Σ wₛ · error(s, kₛ) is small, wₛ being what an error at s
    costs at the outputs. `model` is where the model the statistics are of is now. Cost: milliseconds, once the error
    curves are there; making them takes one factorisation for each width.

    >>> slimformer.plan("stats", macs=0.6).macs <= 0.6
    True
    """
    given: dict[str, Any] = dict(options)
    budget = budget_of(**budget_in(given))
    run, settings = started_from(stats, model, given, progress)
    return make_plan(run, priced(run, budget), settings)


@check_arguments(stats=STATS, plan=PLAN, model=MOVED)
@torch.inference_mode(False)
def apply(
    stats: str | Path | Statistics, plan: str | Path | Plan, *, model: Model | None = None,
    progress: Progress = silent, **opening: Unpack[OpeningOptions],
) -> Result:  # fmt: skip
    """Carry out a plan, made here or read from a file, with the statistics it was made from.

    Cost: one least-squares solution for each reader of a width, and a copy of the model.

    >>> slimformer.apply("stats", slimformer.plan("stats", macs=0.6)).save("planned").name
    'planned'
    """
    decided = plan if isinstance(plan, Plan) else Plan.load(plan)
    statistics = opened_statistics(stats)
    loaded = model_of(statistics, model, dict(opening))
    small, decided = replay(decided, loaded.model, statistics, progress=progress)
    return Result(small, decided, describe_result(loaded, small, decided, statistics.provenance), loaded)


@check_arguments(stats=STATS, model=MOVED, recipe=RECIPE)
@torch.inference_mode(False)
def cut(
    stats: str | Path | Statistics, *, model: Model | None = None, progress: Progress = silent,
    **options: Unpack[CutOptions],
) -> Result:  # fmt: skip
    """Make the model of one budget, without the data: the same bits as `compress(…, refine=False)`.

    Cost: a plan, and what `apply` costs. Its report has sizes and no metrics: `evaluate` measures it.

    >>> slimformer.cut("stats", macs=0.5).plan.macs <= 0.5
    True
    """
    given: dict[str, Any] = dict(options)
    share = budget_of(**budget_in(given))
    run, settings = started_from(stats, model, given, progress)
    budget = priced(run, share)
    result = make(run, budget, settings)
    report = describe_result(run.loaded, result.model, result.decided, run.known.provenance)
    report = replace(report, front=alternatives(run, budget, settings))
    return Result(result.model, result.decided, report, run.loaded)


@check_arguments(stats=STATS, budgets=FRACTIONS, model=MOVED, recipe=RECIPE)
def frontier(
    stats: str | Path | Statistics, budgets: Iterable[float] = (), *, model: Model | None = None,
    progress: Progress = silent, **options: Unpack[FrontOptions],
) -> list[FrontPoint]:  # fmt: skip
    """Plan every budget, planned and not made: what is kept, and the KL divergence (in nats) the probes predict.

    `budgets` are fractions of the block MACs; without them every 5 % the format can reach. Cost: a plan for each.

    >>> [point.plan.budget for point in slimformer.frontier("stats", [0.8, 0.6])]
    [0.8, 0.6]
    """
    shares = list(budgets)
    for share in shares:
        require_fraction(share)
    run, settings = started_from(stats, model, dict(options), progress)
    return front.frontier(run, settings, shares)

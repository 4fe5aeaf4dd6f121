"""The whole front from one calibration: a plan for every budget, what it is expected to do, and what it does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slimformer.calibrate.text import Batch
from slimformer.errors import BudgetOutOfReach, RankTooHigh
from slimformer.evaluate.compare import compare
from slimformer.messages.progress import silent
from slimformer.models import describe
from slimformer.plan import Budget, Plan, legal_sizes_of
from slimformer.plan.curves import path_name
from slimformer.plan.profile import Prices, least_cost
from slimformer.plan.settings import CutSettings
from slimformer.run import Run
from slimformer.steps.make import make, make_plan

STEP = 0.05


@dataclass(frozen=True)
class FrontPoint:
    """A plan, and with it the mean KL divergence (in nats) it is expected to cause; none where no probes were made."""

    plan: Plan

    @property
    def predicted_kl(self) -> float | None:
        """As the plan says."""
        return self.plan.predicted_kl

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        sizes = {path_name(edit.site, edit.rank): edit.keep for edit in plan.edits}
        return {
            "budget": plan.budget, "by": plan.by, "macs": plan.macs, "params": plan.params,
            "predicted_kl": self.predicted_kl, "kept": sizes,
        }  # fmt: skip


def frontier(run: Run, settings: CutSettings, budgets: Sequence[float] = ()) -> list[FrontPoint]:
    """Plans from the largest budget to the smallest. Without `budgets`: every 5 % the format can reach."""
    points = []
    for fraction in sorted(budgets or reachable(run, settings), reverse=True):
        try:
            plan = make_plan(run, Budget(fraction), settings)
        except RankTooHigh:  # to fit this one; where nobody asked for it, there are others
            if budgets:
                raise
            continue
        points.append(FrontPoint(plan))
    return points


def reachable(run: Run, settings: CutSettings) -> list[float]:
    """Every 5 % the format can reach, from 1 down."""
    architecture, seq_len = describe(run.dense), run.seq_len
    legal = legal_sizes_of(settings, None, architecture, run.format)
    least = least_cost(architecture, Prices(seq_len), legal)
    lowest = least / Budget(1.0).dense(architecture, seq_len)
    steps = [round(1 - STEP * i, 4) for i in range(int(1 / STEP))]
    fractions = [fraction for fraction in steps if fraction >= lowest]
    if not fractions:
        raise BudgetOutOfReach("there is nothing to plan: the smallest model is the model itself")
    return fractions


def budgets_at(points: Sequence[FrontPoint], harms: Sequence[float]) -> list[float]:
    """Budgets at which the predicted divergence is each of `harms`, the largest budget first.

    Between two points log harm is taken to be linear in the budget; beyond the ends the last point counts. Where
    nothing was probed, the budgets of the points themselves.
    """
    known = [(point.plan.budget, point.predicted_kl) for point in points if point.plan.budget < 1]
    rising = [(budget, math.log(harm)) for budget, harm in known if harm is not None and harm > 0]
    if len(rising) < 2:
        return [budget for budget, _ in known]
    budgets, logs = zip(*rising, strict=True)
    fractions = np.interp(np.log(harms), np.maximum.accumulate(logs), budgets)
    return sorted({round(float(budget), 3) for budget in fractions}, reverse=True)


def sweep(
    run: Run, settings: CutSettings, points: Sequence[FrontPoint], batches: Sequence[Batch]
) -> Iterator[dict[str, Any]]:
    """Make the model of every point and measure it against the dense one. One model is in memory at a time."""
    run.progress("sweep", 0, len(points))
    for i, point in enumerate(points):
        small = make(replace(run, progress=silent), Budget(point.plan.budget, point.plan.by), settings).model  # type: ignore[arg-type]
        metrics = [metric.to_json() for metric in compare(run.dense, small, batches)]
        run.progress("sweep", i + 1, len(points))
        yield {**point.to_json(), "metrics": metrics}


def correlation(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation of predicted and measured harm; none for fewer than three points."""
    from scipy.stats import spearmanr

    points = list(pairs)
    return float(spearmanr(*zip(*points, strict=True)).statistic) if len(points) > 2 else None

"""From one calibration to a model at any budget: plan, cut, refine; or along the whole front, until it is certified."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from slimformer.calibrate.distributed import lead_only
from slimformer.calibrate.gather import Data
from slimformer.calibrate.metric import shared_metric
from slimformer.calibrate.store import Statistics
from slimformer.decompose import Curve
from slimformer.errors import BudgetOutOfReach
from slimformer.evaluate.certificate import certify, require_documents
from slimformer.evaluate.fidelity import document_harms, harm_name
from slimformer.evaluate.latency_table import latency_table
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models.load import Loaded
from slimformer.plan import Budget, Plan
from slimformer.plan.recipe import Recipe
from slimformer.rewrite.apply import Cut
from slimformer.rewrite.correct import Correction
from slimformer.rewrite.surgery import round_weights
from slimformer.steps.alternatives import menu
from slimformer.steps.frontier import budgets_at, frontier, reachable
from slimformer.steps.refine import refine
from slimformer.steps.stages import calibrate, carry_out, keep_probes, make_plan, profile, require_together

NEARLY_ALL = (0.99, 0.98, 0.97)  # budgets between the first two steps of a front, for small promises
SHARES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.15, 1.3, 1.6, 2.0, 3.0)  # of what is promised, as probes predict it


@dataclass(frozen=True)
class Made:
    """A model at one budget."""

    model: PreTrainedModel
    plan: Plan
    corrections: list[Correction]


@dataclass(frozen=True)
class Bench:
    """All that one calibration gave: from here every budget is one step away."""

    loaded: Loaded
    statistics: Statistics
    curves: Mapping[str, Curve]
    recipe: Recipe
    format: str
    data: Data
    refined: bool
    progress: Progress
    seconds: dict[str, float]

    def make(self, budget: Budget) -> Made:
        """Plan, cut and, unless told otherwise, refine."""
        dense, progress = self.loaded.model, self.progress
        plan = make_plan(dense, self.statistics, self.curves, budget=budget, recipe=self.recipe, format=self.format)
        with timed(self.seconds, "apply"):
            small = carry_out(plan, dense, self.statistics, self.curves, progress=progress)
        corrections = []
        if self.refined and plan.macs < 1:  # where nothing was cut, there is nothing to mend
            with timed(self.seconds, "refine"):
                cut = Cut(plan, self.curves, self.statistics.block)
                corrections = refine(small, dense, cut, self.data.splits, progress=progress)
        round_weights(small, self.loaded.dtype)
        return Made(small, plan, corrections)

    def menu(self, budget: Budget) -> dict[str, Any]:
        """What the plan for this budget was chosen from, for the report."""
        return menu(
            self.loaded.model, self.statistics, self.curves, recipe=self.recipe, budget=budget, format=self.format
        )


def require_certifiable(data: Data, max_kl: float | None) -> None:
    """Refuse, before the long work, if a certificate is asked for and there are too few documents for one."""
    if max_kl is not None:
        documents = sum(len(next(iter(batch.inputs.values()))) for batch in data.splits["certify"])
        require_documents(documents, epsilon=max_kl)


def smallest_certified(bench: Bench, max_kl: float) -> tuple[Made, dict[str, Any]]:
    """The smallest model along the front that passes, and the certificate. The certify split is opened here only."""
    batches = bench.data.splits["certify"]
    require_certifiable(bench.data, max_kl)
    dense = bench.loaded.model
    steps = reachable(dense, bench.statistics, bench.recipe, bench.format)
    steps += [fraction for fraction in NEARLY_ALL if fraction > min(steps)]
    fixed = frontier(dense, bench.statistics, bench.curves, bench.recipe, format=bench.format, budgets=steps)
    budgets = budgets_at(fixed, [share * max_kl for share in SHARES])
    if not budgets:
        raise BudgetOutOfReach(
            f"there is nothing to certify: no smaller model can be made; use {option('format', 'ragged')}"
        )
    measure = harm_name(dense, batches)
    made: list[Made] = []

    def harms(fraction: float) -> list[float]:
        made[:-1] = []  # of the models before, only the last may have to be returned
        made.append(bench.make(Budget(fraction)))
        return document_harms(dense, made[-1].model, batches)

    certificate = certify(((fraction, partial(harms, fraction)) for fraction in budgets), epsilon=max_kl)
    if certificate.budget is None:
        raise BudgetOutOfReach(certificate.promise(measure))
    smallest = next(each for each in made if each.plan.budget == certificate.budget)
    return smallest, {**certificate.to_json(), "promise": certificate.promise(measure)}


def workbench(
    loaded: Loaded,
    data: Data,
    folder: Path,
    recipe: Recipe,
    format: str,
    refined: bool | None,
    progress: Progress,
    seconds: dict[str, float],
) -> Bench:
    """Calibrate, profile and, where the allocation goes by them, find the metric and probe."""
    require_together(loaded, data)
    metric = None
    if recipe.allocation == "greedy" or recipe.metric == "fisher":
        with timed(seconds, "metric"):
            metric = shared_metric(loaded.model, data.splits["fit"], seed=data.seed, progress=progress)
    with timed(seconds, "calibrate"):
        statistics = calibrate(loaded, data, folder, metric=metric, joint=recipe.ffn != "neurons", progress=progress)
    with timed(seconds, "profile"):
        curves = profile(loaded.model, statistics, recipe, progress=progress)
    if recipe.allocation == "greedy":
        with timed(seconds, "probe"):
            keep_probes(loaded.model, statistics, data.splits["select"], progress=progress)
    else:
        lead_only()
    refined = recipe.refine if refined is None else refined
    return Bench(loaded, statistics, curves, recipe, format, data, refined, progress, seconds)


def priced(budget: Budget, model: PreTrainedModel, seq_len: int, progress: Progress = silent) -> Budget:
    """The budget with its prices: a latency budget needs a table measured on this machine."""
    if budget.by != "latency":
        return budget
    return replace(budget, table=latency_table(model, seq_len=seq_len, progress=progress))


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the seconds of a stage to those it took before."""
    started = time.perf_counter()
    yield
    seconds[stage] = round(seconds.get(stage, 0.0) + time.perf_counter() - started, 2)

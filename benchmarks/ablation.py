"""Claim: each part of the default recipe earns its place; what was tried beside it and lost is shown as well.

    python benchmarks/ablation.py stories15M --threads 1

Every row is `balanced` with one thing changed, at equal MACs, on held-out text: the selector, the metric, the
allocation, the units of attention, the correction. Results: benchmarks/results/ablation-<model>.json. About half an
hour on one core for stories15M; goes on where it was killed, as `quality.py` does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from torch import Tensor

from cells import HERE, PACKAGE, Cell, code_hash, write_json
from quality import Bench, Options, prepare, run_of
from slimformer.calibrate.collect import BlockMoments
from slimformer.calibrate.store import Statistics, open_statistics, write_block
from slimformer.files.versions import versions
from slimformer.linalg.moments import Moments
from slimformer.models import describe
from slimformer.models.hooks import listening
from slimformer.models.walk import real_rows, rehearse, through
from slimformer.plan import Budget
from slimformer.plan.settings import CutSettings
from slimformer.recipe import cut_settings
from slimformer.rewrite.apply import Cut, apply
from slimformer.steps.calibration import keep_probes, profile
from slimformer.steps.make import make_plan
from slimformer.steps.refine import refine
from verdicts import OURS, console_tables, summary

BUDGETS = (0.8, 0.6, 0.5)


@dataclass(frozen=True)
class Variant:
    """The default recipe with something changed: settings of the recipe, the moments, or what follows the cut."""

    part: str
    change: dict[str, Any] = field(default_factory=dict)
    refined: bool = True
    moments: Callable[[Bench], Statistics] = lambda bench: bench.statistics
    fitted: Callable[[BlockMoments], BlockMoments] = lambda block: block  # what readers are fitted on


# --- ideas that are not in the package ----------------------------------------------------------------------


def token_weighted(bench: Bench) -> Statistics:
    """Moments in which a token counts ω = 1/σ², σ the scale of the stream it is added to, mean ω being 1.

    To first order a norm divides what is written by σ, so errors at loud tokens are said to matter less. Kept beside
    the moments of the quality benchmark. Cost: one more pass.
    """
    folder = bench.statistics.folder.with_name(bench.statistics.folder.name + "-token-weights")
    if (folder / "error_weights.json").is_file():
        return open_statistics(folder)
    (folder / "moments").mkdir(parents=True, exist_ok=True)
    shutil.copy(bench.statistics.folder / "stats.json", folder)
    model, splits = bench.subject.model, bench.subject.calibration
    architecture, error_weight = describe(model), bench.statistics.weights()
    stages = [stage for split in ("fit", "select") for stage in rehearse(model, architecture, splits[split], split)]
    for i, block in enumerate(model.get_submodule(architecture.stacks[0].path).children()):
        known = bench.statistics.block(i)
        sites: dict[str, dict[str, Moments]] = {site.name: {} for site in architecture.blocks[i].sites}
        for stage in stages:
            heard: dict[str, Tensor] = {}
            ears = {site.reader: _note(heard, site.name) for site in architecture.blocks[i].sites}
            with torch.no_grad(), listening(model, inputs=ears):
                stage.state = through(block, stage.state, stage.calls[i])
            stream = real_rows(stage.state, stage.rows).double()
            for name, X in heard.items():
                ω = 1 / stream.square().sum(-1).clamp_min(1e-12) / error_weight[name]
                new = weighted_moments(real_rows(X, stage.rows), ω)
                sites[name][stage.split] = sites[name][stage.split] + new if stage.split in sites[name] else new
        write_block(folder, replace(known, sites=sites))
    shutil.copy(bench.statistics.folder / "error_weights.json", folder)
    return open_statistics(folder)


def weighted_moments(X: Tensor, ω: Tensor) -> Moments:
    """Σ ω x and Σ ω x xᵀ, counted as if every weight were 1."""
    rows = X.double() * ω.sqrt()[:, None]
    return Moments(len(X), (X.double() * ω[:, None]).sum(0), rows.mT @ rows)


def _note(heard: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    return lambda X: heard.__setitem__(name, X)


def uncorrelated(block: BlockMoments) -> BlockMoments:
    """Moments that know of no correlation: least squares then leaves readers as they are, but for the mean."""
    sites = {
        name: {split: Moments(m.count, m.sum, _no_covariance(m)) for split, m in splits.items()}
        for name, splits in block.sites.items()
    }
    return replace(block, sites=sites)


def _no_covariance(m: Moments) -> Tensor:
    mean = torch.outer(m.sum, m.sum) / max(m.count, 1)
    return mean + torch.diag((m.gram - mean).diagonal())


VARIANTS: dict[str, Variant] = {
    OURS: Variant("all of it"),
    "interpolative": Variant("selector", {"selector": "interpolative"}),
    "squares": Variant("metric", {"metric": "squares"}),
    "token-weights": Variant("metric", moments=token_weighted),
    "uniform": Variant("allocation", {"allocation": "uniform", "attention": "heads"}),
    "heads": Variant("attention", {"attention": "heads"}),
    "ranks": Variant("attention", {"attention": "ranks"}),
    "nested": Variant("correction", refined=False),
    "heads-nested": Variant("correction", {"attention": "heads"}, refined=False),
    "heads-no-correction": Variant("correction", {"attention": "heads"}, refined=False, fitted=uncorrelated),
}


def cell(bench: Bench, name: str, budget: float) -> Cell:
    """One variant at one budget."""
    bench = replace(bench, cache=replace(bench.cache, code=f"{bench.cache.code}-{own_code()}"))
    found = bench.cache.cell(f"ablation-{name}", budget)
    if found is not None:
        return replace(found, method=name)
    started, variant, model = time.perf_counter(), VARIANTS[name], bench.subject.model
    recipe = varied(variant)
    statistics = variant.moments(bench)
    curves = profile(model, statistics, recipe)
    if recipe.allocation == "greedy" and not statistics.probes():
        keep_probes(model, statistics, bench.subject.calibration["select"])
    plan = make_plan(run_of(bench.subject, statistics, curves), Budget(budget), recipe)
    small = apply(plan, model, curves, lambda i: variant.fitted(statistics.block(i)))
    if variant.refined:
        refine(small, model, Cut(plan, curves, statistics.block), bench.subject.calibration)
    seconds = round(time.perf_counter() - started, 1)
    sizes = {edit.site: edit.keep for edit in plan.edits}
    scores = bench.measure(small, f"{name} {budget:g}")
    made = Cell(f"ablation-{name}", budget, plan.macs, plan.params, sizes, seconds, scores)
    bench.cache.write_cell(made)
    return replace(made, method=name)


@cache
def own_code() -> str:
    """What is decided here, and the metric."""
    return code_hash([HERE / "ablation.py", PACKAGE / "calibrate" / "metric.py"])


def varied(variant: Variant) -> CutSettings:
    """The default recipe with the change."""
    return cut_settings(OURS).model_copy(update=variant.change)


def results_of(bench: Bench, dense: Cell, cells: list[Cell], threads: int) -> Mapping[str, Any]:
    """What the result file says."""
    parts = {name: variant.part for name, variant in VARIANTS.items()}
    settings = {**bench.subject.settings(), "threads": threads, "versions": versions(), "code": bench.cache.code}
    return {"benchmark": "ablation", "settings": settings, "parts": parts, **summary(dense, cells)}


def main() -> int:
    """Run all variants and write the table."""
    parser = argparse.ArgumentParser(description="The default recipe with one thing changed at a time.")
    parser.add_argument("model")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    console = Console()
    budgets = tuple(float(part) for part in asked.budgets.split(","))
    options = Options(asked.model, budgets, tuple(VARIANTS), False, asked.threads, False)
    bench = prepare(options, lambda text: console.print(f"{time.strftime('%H:%M:%S')} {text}"))
    dense = bench.dense()
    cells = [cell(bench, name, budget) for name in VARIANTS for budget in budgets]
    found = results_of(bench, dense, cells, asked.threads)
    for table in console_tables(dict(found)):
        console.print(table)
    file: Path = HERE / "results" / f"ablation-{asked.model}.json"
    write_json(file, found, indent=1)
    console.print(f"written: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Claim: at equal MACs the default recipe is never significantly worse than any of the published methods.

    python benchmarks/quality.py stories15M
    python benchmarks/quality.py smollm2 --threads 2
    python benchmarks/quality.py minilm-sst2 --budgets .8,.5 --methods stat,balanced --quick

Every method gets the same calibration tokens, sizes and exact MACs (`baselines.py`); models and data are in
`subjects.py`. Every model measured is truly cut, but for those of `simulated.py` (ranks, the residual stream), which
say what they would cost. Methods that drop whole blocks meet a budget from below, plain sizes within 5 %, all others
within 1 %.

Two methods are compared example by example (windows, sentences, images): the paired bootstrap gives an interval of
(method − balanced), and where it leaves out zero the difference is called significant. Exit code 1 when `balanced` is
significantly worse than a baseline anywhere.

A run that is killed goes on where it was; cells are made anew when the code that decides them has changed.
Results: benchmarks/results/quality-<model>.json. Takes up to an hour on two cores (smollm2).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import PreTrainedModel

from baselines import BASELINES, Curves, Given, baseline_model, baseline_plan
from cells import (
    HERE,
    PACKAGE,
    Cache,
    Cell,
    code_hash,
    deciding_code,
    measured,
    quality_folder,
    settings_hash,
    simulating_code,
    write_json,
)
from simulated import SIMULATED
from simulated_evidence import Evidence, Smaller
from slimformer.calibrate.gather import Data
from slimformer.calibrate.metric import fisher_metric
from slimformer.calibrate.store import Statistics, open_statistics
from slimformer.decompose.reduction import legal_sizes
from slimformer.files.versions import versions
from slimformer.models import describe
from slimformer.models.architecture import fingerprint
from slimformer.models.description import is_pre_norm
from slimformer.models.ranks import heads_of
from slimformer.plan import Budget
from slimformer.plan.cost import Size, kv_cache_bytes
from slimformer.plan.curves import path_name
from slimformer.plan.settings import CutSettings
from slimformer.recipe import cut_settings, load_recipe
from slimformer.rewrite.apply import Cut
from slimformer.run import Run
from slimformer.steps.calibration import calibrate, keep_probes, profile
from slimformer.steps.depth import Depth, make_shallow
from slimformer.steps.make import carry_out, make_plan
from slimformer.steps.refine import refine
from subjects import SUBJECTS, Scores, Subject, digest, subject
from verdicts import OURS, console_tables, holds, summary

# nested: what `cut` makes, without refinement; plain: one size for all blocks, as a stock config can say it; heads:
# attention by whole heads alone, to tell what ranks are worth; neurons: feed-forward parts by neurons alone, to tell
# what linear paths are worth
RECIPES = {"uniform": "uniform", "nested": OURS, "plain": OURS, "heads": OURS, "neurons": OURS, OURS: OURS}
CHANGES = {"heads": {"attention": "heads"}, "neurons": {"ffn": "neurons"}}
# to look at, left out unless asked for: paths everywhere, all or linear, whole blocks
APART = {"bypass": "bypass", "linear-mlp": "linear-mlp", "depth": "depth"}
OWN = RECIPES | APART
METHODS = (*BASELINES, *SIMULATED, *RECIPES)
BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    model: str
    budgets: tuple[float, ...]
    methods: tuple[str, ...]
    quick: bool
    threads: int
    keep_cells: bool
    keep_baselines: bool = False
    name: str = ""  # of the results, beside those of the whole table


# --- what every method is given -----------------------------------------------------------------------------


def statistics_of(subject: Subject, say: Say) -> Statistics:
    """What one calibration pass found, kept on disk until the model, the tokens or the code changes."""
    places = ("calibrate/collect.py", "calibrate/respond.py", "decompose/response.py", "decompose/metric.py",
              "decompose/bypass.py", "calibrate/metric.py", "linalg/moments.py", "linalg/pairs.py")  # fmt: skip
    code = code_hash([PACKAGE / place for place in places])
    key = settings_hash(
        {
            "model": fingerprint(subject.model),
            "code": code,
            "digest": {split: digest(batches) for split, batches in subject.calibration.items()},
        }
    )
    folder = quality_folder(subject.name) / f"moments-{key}"
    if not (folder / "error_weights.json").is_file():  # written last
        say("calibrate")
        splits = {split: list(batches) for split, batches in subject.calibration.items()}
        data = Data(splits, subject.data, key, subject.settings()["seed"], subject.seq_len)
        tell = partial(_tell, say)
        metric = fisher_metric(subject.model, splits["fit"], seed=data.seed, progress=tell)
        calibrate(subject.loaded, data, folder, metric=metric, joint=True, progress=tell)
    _forget_old_findings(folder)
    return open_statistics(folder)


def _tell(say: Say, stage: str, done: int, total: int) -> None:
    say(f"{stage} {done}/{total}")


def _forget_old_findings(folder: Path) -> None:
    """Curves and probes are kept beside the moments; those of other code must not be taken for ours."""
    stamp = folder / "deciding.code"
    if not stamp.is_file() or stamp.read_text() != deciding_code():
        for file in (*folder.glob("curves-*.json"), *folder.glob("probes.json")):
            file.unlink()
        stamp.write_text(deciding_code())


# --- one method at one budget -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """A subject with its statistics, ready to try methods on."""

    subject: Subject
    statistics: Statistics
    given: Given
    evidence: Evidence
    cache: Cache
    say: Say
    keep_baselines: bool = False

    def cell(self, method: str, budget: float, curves: Callable[[], Curves]) -> Cell:
        """Decide, cut and measure, unless it was done before."""
        store = replace(self.cache, code=simulating_code()) if method in SIMULATED else self.cache
        store = replace(store, keep_cells=store.keep_cells or (self.keep_baselines and method not in OWN))
        found = store.cell(method, budget)
        if found is not None:
            return found
        started = time.perf_counter()
        self.say(f"{method} {budget:g}: cut")
        small = self._smaller(method, budget, curves)
        if not budget - self._step(method) <= small.macs <= budget:
            raise SystemExit(f"{method} keeps {small.macs:.4f} of the MACs where {budget:g} was asked for")
        seconds = time.perf_counter() - started
        scores = self.measure(small.model, f"{method} {budget:g}")
        cell = Cell(method, budget, small.macs, small.params, small.sizes, round(seconds, 1), scores)
        store.write_cell(cell)
        return cell

    def dense(self) -> Cell:
        """The model as it is."""
        return Cell("dense", 1.0, 1.0, 1.0, {}, 0.0, self.measure(self.subject.model, "dense"))

    def curves(self, method: str) -> Curves:
        """Orders and error curves of a method; they serve every budget."""
        self.say(f"{method}: curves")
        if method in BASELINES:
            return BASELINES[method].curves(self.given)
        model, recipe = self.subject.model, recipe_for(method)
        curves = profile(model, self.statistics, recipe)
        if recipe.allocation == "greedy" and not self.statistics.probes():
            self.say(f"{method}: probes")
            keep_probes(model, self.statistics, self.subject.calibration["select"])
        return dict(curves)

    def measure(self, small: PreTrainedModel, what: str) -> Scores:
        """Scores on every report; each is kept under the weights it belongs to."""
        return measured(self.cache, self.subject, small, lambda report: self.say(f"{what}: {report}"))

    def with_cache(self, cell: Cell) -> Cell:
        """The cell with the share of the KV cache kept; encoders have none, simulated models only say their MACs."""
        dense, length = self.given.architecture, self.subject.seq_len
        if not dense.family.causal or not {heads_of(dense, i).name for i in range(dense.n_blocks)} <= set(cell.sizes):
            return cell
        sizes = {}
        for name, units in cell.sizes.items():
            if ".ffn." in name:  # keeps no keys
                continue
            site = dense.by_name.get(name)
            groups = dict(zip(*legal_sizes(site.units, site.group), strict=True))[units] if site else units
            sizes[name] = Size(units, groups)
        kept = kv_cache_bytes(dense, length, 4, sizes) / kv_cache_bytes(dense, length, 4)
        return replace(cell, kv_cache=kept)

    def left_out(self, method: str) -> str | None:
        """Why a method cannot be had for this model; None if it can."""
        if method == "plain" and not self.given.architecture.sites[0].attention.plain_heads:
            return "a stock config of this family says no number of heads, so only neurons could be cut"
        return SIMULATED[method].refuses(self.subject.model) if method in SIMULATED else None

    def _smaller(self, method: str, budget: float, curves: Callable[[], Curves]) -> Smaller:
        if method in SIMULATED:
            return SIMULATED[method].make(self.evidence, budget)
        model, given = self.subject.model, self.given
        if method == "depth":
            return self._shallow(budget)
        if method in BASELINES:
            plan = baseline_plan(method, given, curves(), budget)
            small = baseline_model(method, given, curves(), plan)
        else:
            run = run_of(self.subject, self.statistics, curves(), "plain" if method == "plain" else "ragged")
            plan = make_plan(run, Budget(budget), recipe_for(method))
            small = carry_out(plan, model, self.statistics, curves())
            if load_recipe(OWN[method]).after_cut and method != "nested":
                refine(small, model, Cut(plan, curves(), self.statistics.block), self.subject.calibration)
        sizes = {path_name(edit.site, edit.rank): edit.keep for edit in plan.edits}
        return Smaller(small, plan.macs, plan.params, sizes)

    def _shallow(self, budget: float) -> Smaller:
        """Fewer blocks: chosen on streams of the calibration text, so moments are of no use."""
        made = self.subject
        data = Data(dict(made.calibration), made.data, "", made.settings()["seed"], made.seq_len)
        by = "cosine" if is_pre_norm(made.model, self.given.architecture.sites[-1].part) else "drop"
        small, plan, _ = make_shallow(made.model, data, Depth(by=by, macs=budget, name="depth"))
        return Smaller(small, plan.macs, plan.params, {edit.site: edit.keep for edit in plan.edits})

    def _step(self, method: str) -> float:
        """How far below a budget a method may stay: 1 % of the MACs, or a block where only whole blocks go."""
        coarse = method == "depth" or (method in SIMULATED and SIMULATED[method].whole_blocks)
        return 1 / self.given.architecture.n_blocks if coarse else 0.05 if method == "plain" else 0.01


def recipe_for(method: str) -> CutSettings:
    """The settings behind a row of ours."""
    return cut_settings(OWN[method]).model_copy(update=CHANGES.get(method, {}))


def run_of(subject: Subject, statistics: Statistics, curves: Curves, format: str = "ragged") -> Run:
    """What one calibration gave: from here every budget is one plan away."""
    return Run(subject.loaded, subject.model, format, statistics=statistics, curves=curves)


def calibrated_run(subject: Subject, recipe: str, say: Say) -> tuple[Run, CutSettings]:
    """A run from kept statistics, with probes and what the recipe does after its cut, and the settings of that."""
    statistics, settings = statistics_of(subject, say), cut_settings(recipe)
    say(f"{recipe}: curves and probes")
    curves = profile(subject.model, statistics, settings)
    if settings.allocation == "greedy" and not statistics.probes():
        keep_probes(subject.model, statistics, subject.calibration["select"])
    splits = {split: list(batches) for split, batches in subject.calibration.items()}
    data = Data(splits, subject.data, "", subject.settings()["seed"], subject.seq_len)
    run = run_of(subject, statistics, curves)
    return replace(run, data=data, after=load_recipe(recipe).after_cut), settings


def prepare(options: Options, say: Say) -> Bench:
    """Load the model, lay out the data, calibrate once."""
    say("load")
    made = subject(options.model, quick=options.quick)
    statistics = statistics_of(made, say)
    given = Given(
        made.model, describe(made.model), cache(statistics.block), statistics.weights(), made.seq_len,
        cut_settings(OURS),
    )  # fmt: skip
    settings = settings_hash({**made.settings(), "fingerprint": fingerprint(made.model)})
    store = Cache(quality_folder(made.name), settings, deciding_code(), options.keep_cells)
    evidence = Evidence(given, made.calibration["fit"], made.calibration["select"])
    return Bench(made, statistics, given, evidence, store, say, options.keep_baselines)


# --- the run ------------------------------------------------------------------------------------------------


def run(options: Options, console: Console) -> tuple[Subject, Cell, list[Cell]]:
    """All cells asked for, one method after the other."""
    columns = (TextColumn("{task.description:42s}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(options.methods) * len(options.budgets))

        def say(text: str) -> None:
            progress.update(task, description=f"{options.model}: {text}")
            if not console.is_terminal:
                console.print(f"{time.strftime('%H:%M:%S')} {options.model}: {text}")

        bench = prepare(options, say)
        dense = bench.dense()
        cells = []
        for method in options.methods:
            if reason := bench.left_out(method):
                console.print(f"{options.model}: {method} is left out: {reason}")
                progress.advance(task, len(options.budgets))
                continue
            curves = cache(lambda method=method: bench.curves(method))
            for budget in options.budgets:
                cells.append(bench.with_cache(bench.cell(method, budget, curves)))
                progress.advance(task)
    return bench.subject, dense, cells


def write_results(subject: Subject, options: Options, dense: Cell, cells: Sequence[Cell]) -> Path:
    """benchmarks/results/quality-<model>.json, from which the tables are rendered."""
    recipe = cut_settings(OURS)
    settings = {
        **subject.settings(),
        "ridge": recipe.ridge,
        "multiple_of": recipe.multiple_of,
        "threads": options.threads,
        "versions": versions(),
        # kept cells were decided by older code: the file must not claim otherwise
        "code": "older code, cells kept" if options.keep_cells else deciding_code(),
        "baselines": "older code, cells kept" if options.keep_cells or options.keep_baselines else deciding_code(),
        "simulating_code": "older code, cells kept" if options.keep_cells else simulating_code(),
    }
    file = HERE / "results" / f"quality-{'-'.join(filter(None, (subject.name, options.name)))}.json"
    write_json(file, {"benchmark": "quality", "settings": settings, **summary(dense, cells)}, indent=1)
    return file


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description="Quality at equal MACs, against published methods.")
    parser.add_argument("model", choices=list(SUBJECTS))
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="fractions of block MACs to keep")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join((*METHODS, *APART))}")
    parser.add_argument("--quick", action="store_true", help="few tokens, to see that it runs")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-cells", action="store_true", help="take cells made by older code as they are")
    parser.add_argument("--keep-baselines", action="store_true", help="the same for other people's methods alone")
    parser.add_argument("--as", dest="name", default="", help="write these budgets and methods to quality-<model>-<as>")
    found = parser.parse_args(arguments)
    methods = tuple(name.strip() for name in found.methods.split(","))
    if unknown := [name for name in methods if name not in (*METHODS, *APART)]:
        parser.error(f"there is no method {unknown[0]!r}; choose from {', '.join((*METHODS, *APART))}")
    budgets = tuple(float(budget) for budget in found.budgets.split(","))
    kept = found.keep_cells, found.keep_baselines
    return Options(found.model, budgets, methods, found.quick, found.threads, *kept, found.name)


def main() -> int:
    """Run, print the tables, and say whether the claim holds."""
    options = parse()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    console = Console()
    started = time.monotonic()
    found, dense, cells = run(options, console)
    results = summary(dense, cells)
    for table in console_tables(results):
        console.print(table)
    if OURS in options.methods and (options.budgets == BUDGETS or options.name) and not options.quick:
        console.print(f"written: {write_results(found, options, dense, cells)}")
    verdict = holds(results)
    if OURS in options.methods:
        console.print(f"{OURS} is never significantly worse than a baseline: {verdict}")
    console.print(f"{(time.monotonic() - started) / 60:.1f} min")
    return 0 if verdict else 1


if __name__ == "__main__":
    sys.exit(main())

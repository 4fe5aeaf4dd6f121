"""Claim: a linear path beside the neurons that stay is worth its MACs where MLPs are gated.

    python benchmarks/bypass.py stories15M --threads 1

Every row is `balanced` with another way to cut feed-forward parts, at equal MACs, on held-out text: `neurons` alone
(the default), whichever is `best` block by block (the recipe `bypass`), and feed-forward parts whole or `linear` (the
recipe `linear-mlp`). One calibration and one set of probes serve all of them. Results:
benchmarks/results/bypass-<model>.json; goes on where it was killed, as `quality.py` does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
import transformers
from rich.console import Console

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
    write_json,
)
from slimformer.calibrate.gather import Data
from slimformer.calibrate.store import Statistics, open_statistics
from slimformer.fisher import fisher_metric
from slimformer.models.architecture import fingerprint
from slimformer.plan.ffn import curve_name
from slimformer.plan.recipe import load_recipe
from slimformer.probe import keep_probes
from slimformer.refine import refine
from slimformer.stages import calibrate, carry_out, make_plan, profile, versions
from subjects import SUBJECTS, Subject, digest, subject
from verdicts import OURS, console_tables, summary

BUDGETS = (0.8, 0.7, 0.6, 0.5)
WAYS = {OURS: "neurons", "bypass": "best", "linear-mlp": "linear"}
Say = Callable[[str], None]


def statistics_of(made: Subject, key: str, say: Say) -> Statistics:
    """Moments, also of neurons with their inputs, and probes; kept until model, tokens or code change."""
    folder = quality_folder(made.name) / f"joint-{key}"
    if not (folder / "probes.json").is_file():  # written last
        say("calibrate")
        splits = {split: list(batches) for split, batches in made.calibration.items()}
        data = Data(splits, made.data, key, made.settings()["seed"], made.seq_len)
        metric = fisher_metric(made.model, splits["fit"], seed=data.seed)
        found = calibrate(made.loaded, data, folder, metric=metric, joint=True)
        say("probes")
        keep_probes(made.model, found, splits["select"])
    return open_statistics(folder)


def cell(made: Subject, statistics: Statistics, store: Cache, name: str, budget: float, say: Say) -> Cell:
    """One way at one budget."""
    known = store.cell(f"ffn-{name}", budget)
    if known is not None:
        return replace(known, method=name)
    say(f"{name} {budget:g}")
    started = time.perf_counter()
    recipe = load_recipe(OURS).model_copy(update={"ffn": WAYS[name]})
    curves = profile(made.model, statistics, recipe)
    plan = make_plan(made.model, statistics, curves, macs=budget, recipe=recipe)
    small = carry_out(plan, made.model, statistics, curves)
    refine(small, made.model, plan, statistics, curves, made.calibration)
    seconds = round(time.perf_counter() - started, 1)
    scores = measured(store, made, small, say)
    sizes = {curve_name(edit.site, edit.rank): edit.keep for edit in plan.edits}
    found = Cell(f"ffn-{name}", budget, plan.macs, plan.params, sizes, seconds, scores)
    store.write_cell(found)
    return replace(found, method=name)


@cache
def own_code() -> str:
    """What decides here."""
    return code_hash([HERE / "bypass.py", PACKAGE / "fisher.py"])


def main() -> int:
    """Run all ways and write the table."""
    parser = argparse.ArgumentParser(description="Ways to cut feed-forward parts, at equal MACs.")
    parser.add_argument("model", choices=list(SUBJECTS))
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="fractions of block MACs to keep")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    console = Console()

    def say(text: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')} {asked.model}: {text}")

    made = subject(asked.model, quick=False)
    code = f"{deciding_code()}-{own_code()}"
    tokens = {split: digest(batches) for split, batches in made.calibration.items()}
    key = settings_hash({**made.settings(), "model": fingerprint(made.model), "tokens": tokens, "code": code})
    store = Cache(quality_folder(made.name), key, code, False)
    statistics = statistics_of(made, key, say)
    say("dense")
    dense = Cell("dense", 1.0, 1.0, 1.0, {}, 0.0, measured(store, made, made.model, say))
    asked_for = [(way, float(part)) for way in asked.ways.split(",") for part in asked.budgets.split(",")]
    cells = [cell(made, statistics, store, way, budget, say) for way, budget in asked_for]
    settings = {**made.settings(), "threads": asked.threads, "versions": versions(), "code": code}
    found = {"benchmark": "bypass", "settings": settings, **summary(dense, cells)}
    for table in console_tables(found):
        console.print(table)
    file: Path = HERE / "results" / f"bypass-{asked.model}.json"
    write_json(file, found, indent=1)
    console.print(f"written: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

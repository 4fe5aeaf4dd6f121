"""What a recipe costs, stage by stage, over what cannot be avoided, and what the time buys.

    OMP_NUM_THREADS=1 python benchmarks/stages.py stories15M smollm2 --tokens 8192

The bound is one forward pass through the blocks over the tokens that are fitted and chosen on, and their Gram matrices,
at the speed of a large single-precision matrix product measured before and after, in the same run. Every recipe gets
the same text, tokens and budgets: SmolLM2 the built-in mixture, stories15M stories (broad text beside them). What is
lost is excess nats per token over the dense model, on the report split and, for SmolLM2, on sources of built-in text
that were neither fitted nor chosen on ("other text"); of these stories15M knows nothing. Seconds of evaluation are not
counted. One thread.

A row that was measured is kept, unless `--again` is given. Results: benchmarks/results/stages.json.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from cells import HERE, write_json
from recipes import shared_file
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.evaluate.perplexity import perplexity
from slimformer.files.versions import versions
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model
from slimformer.plan import Budget
from slimformer.plan.cost import block_cost
from slimformer.recipe import cut_settings, load_recipe
from slimformer.run import Run
from slimformer.steps.calibration import calibrated
from slimformer.steps.make import make
from speed import sgemm_flops

RESULTS = HERE / "results" / "stages.json"
RECIPES = ("fast", "balanced", "balanced --no-refine", "uniform", "stat")
TARGETS = {"balanced": 4.0, "fast": 2.0}


@dataclass(frozen=True)
class Subject:
    """A model, the text every recipe gets, and what the dense model says to that which is measured on."""

    name: str
    loaded: Loaded
    data: Data
    dense: dict[str, float]  # nats per token, by text

    def nats(self, model: Any) -> dict[str, float]:
        """Nats per token on the report split and, for a model that knows it, on other text."""
        texts = {"report": self.data.splits["report"]}
        if self.name == "smollm2":
            texts["other"] = [batch for batches in self.data.other.values() for batch in batches]
        return {name: math.log(perplexity(model, batches).ppl) for name, batches in texts.items()}


SOURCES: dict[str, tuple[Callable[[], str], Callable[[], str]]] = {  # of models and of their text
    "smollm2": (lambda: "demo:smollm2", lambda: "builtin"),
    "stories15M": (
        lambda: str(shared_file("models", "stories15M", "config.json").parent),
        lambda: str(shared_file("data", "tinystories_sample", "tinystories_sample.txt")),
    ),
}


def subject(name: str, tokens: int) -> Subject:
    model, text = SOURCES[name]
    loaded = load_model(model())
    reading = Reading(tokens=tokens, broad=True)
    data = gather(text(), loaded.model, loaded.processor, describe(loaded.model), reading)
    blank = Subject(name, loaded, data, {})
    return replace(blank, dense=blank.nats(loaded.model))


def bound_flops(here: Subject) -> int:
    """Of a forward pass through the blocks and of Gram matrices, over the tokens of fit and select."""
    architecture = describe(here.loaded.model)
    counted = here.data.tokens["fit"] + here.data.tokens["select"]
    each = 2 * block_cost(architecture, here.data.seq_len).macs + sum(site.width**2 for site in architecture)
    return int(each * counted)  # a Gram matrix is symmetric: half of 2 d² operations


def row(here: Subject, name: str, budgets: list[float]) -> dict[str, Any]:
    """One recipe from the loaded model to the cut ones; seconds of what follows calibration are of the first budget."""
    recipe = load_recipe(name.partition(" ")[0])
    after = () if "--no-refine" in name else recipe.after_cut
    before, cells = sgemm_flops(), []
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(here.loaded, here.loaded.model, data=here.data, folder=Path(scratch), after=after)
        settings = cut_settings(recipe)
        run = calibrated(run, settings)
        seconds = dict(run.seconds)
        for budget in budgets:
            cut = make(replace(run, seconds={}), Budget(budget), settings)
            seconds = seconds if cells else seconds | cut.seconds
            excess = {text: nats - here.dense[text] for text, nats in here.nats(cut.model).items()}
            cells.append({"budget": budget, "macs": cut.decided.macs, "excess": excess})
    speed = (before + sgemm_flops()) / 2
    bound, total = bound_flops(here) / speed, sum(seconds.values())
    return {
        "model": here.name, "recipe": name, "tokens": here.data.tokens, "seconds": seconds, "total": total,
        "sgemm_gflops": speed / 1e9, "bound_seconds": bound, "ratio": total / bound, "cells": cells,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=list(SOURCES))
    parser.add_argument("--tokens", type=int, default=8_192)
    parser.add_argument("--budgets", default="0.8,0.6")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--again", action="store_true", help="measure rows anew that were measured before")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = json.loads(options.out.read_text("utf-8"))["rows"] if options.out.exists() else {}
    for name in options.models:
        here = None
        for recipe in options.recipes.split(","):
            key = f"{name} | {recipe} | {options.tokens}"
            if key in rows and not options.again:
                continue
            here = here or subject(name, options.tokens)
            rows[key] = row(here, recipe, [float(each) for each in options.budgets.split(",")])
            write_json(
                options.out,
                {"benchmark": "stages", "threads": 1, "targets": TARGETS, "versions": versions(), "rows": rows},
                indent=1,
            )
            brief = {f"{c['budget']:g}": {t: round(x, 3) for t, x in c["excess"].items()} for c in rows[key]["cells"]}
            print(f"{key}: {rows[key]['total']:.0f} s, {rows[key]['ratio']:.1f} × the bound, {brief}", flush=True)


if __name__ == "__main__":
    main()

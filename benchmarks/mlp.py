"""Feed-forward parts replaced: what every way leaves of the output, and of the model, at equal multiplications.

    python benchmarks/mlp.py [stories15M] [minilm] [smollm2] [--only cosine bypass] [--quick]

Every part is fitted on what the dense model sends, by itself; nothing else is cut, nothing is refined (the methods:
`mlp_methods.py`). All numbers are of held-out text:

    R²        1 − E ‖y − ŷ‖² / E ‖y − ȳ‖² of what the part writes, mean over blocks; the input is the dense model's
    cosine    of what reads it: post-norm the normed sum, pre-norm what is written; mean over tokens, then over blocks
    some      perplexity, or cosine of sentence embeddings to the dense model's, every third block replaced
    all       the same, all blocks replaced

Results go to benchmarks/results/mlp.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging

from mlp_methods import METHODS, Neural, held_out
from mlp_methods import Subject as Part
from slimformer.calibrate.text import Batch
from slimformer.errors import ScaleMatters
from slimformer.evaluate.fidelity import state_similarity
from slimformer.evaluate.perplexity import perplexity
from slimformer.models import Architecture, describe
from slimformer.models.hooks import listening
from slimformer.models.walk import Stream, real_rows, rehearse, through
from slimformer.nn.replaced import put_mlp
from subjects import QUICK, SUBJECTS, Amount, Subject
from truncation import minilm

RESULTS = Path(__file__).parent / "results" / "mlp.json"
AMOUNTS = {
    "smollm2": Amount(fit=8_192, select=512, windows=4, other_windows=1),
    "stories15M": Amount(fit=16_384, select=512, windows=8),
    "minilm": Amount(fit=16_384, examples=400),
}
FEW = {"smollm2"}  # of which only every third block is looked at: with all 30 replaced there is no language left
LEFT_OUT = {"smollm2": (0.5, 2.0)}
EVERY = 3


def made(name: str, quick: bool) -> Subject:
    amount = QUICK if quick else AMOUNTS[name]
    return minilm(amount) if name == "minilm" else SUBJECTS[name](amount)


# --- what feed-forward parts see --------------------------------------------------------------------------------


@torch.inference_mode()
def parts(subject: Subject, chosen: Container[int]) -> Iterator[Part]:
    """The chosen blocks, one after the other, with their rows of the calibration and of the report."""
    model = subject.model.eval()
    architecture = describe(model)
    report = next(iter(subject.reports.values()))
    walks = [list(rehearse(model, architecture, batches)) for batches in (subject.calibration["fit"], report)]
    for i in range(architecture.n_blocks):
        if i in chosen:
            fit, held = (rows_of(model, architecture, i, stages) for stages in walks)
            yield Part(model, architecture, i, fit, held=held)
            continue
        for stage in (stage for stages in walks for stage in stages):
            block = model.get_submodule(architecture.blocks[i].path)
            stage.state = through(block, stage.state, stage.calls[i])


def rows_of(model: PreTrainedModel, architecture: Architecture, i: int, stages: Sequence[Stream]) -> Neural:
    """What went through the feed-forward part of block i; the stages move on by one block."""
    block = model.get_submodule(architecture.blocks[i].path)
    site = architecture[f"blocks.{i}.ffn.hidden"]
    entry = site.entry
    found: dict[str, list[Tensor]] = {name: [] for name in "xzyh"}
    for stage in stages:
        heard: dict[str, Tensor] = {}
        hear = {name: partial(heard.__setitem__, name) for name in "xzyh"}
        read = {site.writers[0].module: hear["x"], site.reader: hear["z"]}
        with (
            listening(model, inputs=read, outputs={site.reader: hear["y"]}),
            listening(model, inputs={entry: hear["h"]}),
        ):
            stage.state = through(block, stage.state, stage.calls[i])
        for name, rows in heard.items():
            found[name].append(real_rows(rows, stage.rows))
    return Neural(**{name: torch.cat(rows) for name, rows in found.items()})


# --- replacing and measuring ------------------------------------------------------------------------------------

Cell = tuple[str, float]


def replaced(
    subject: Subject, only: Sequence[str], chosen: Container[int]
) -> tuple[dict[Cell, dict[int, nn.Module]], dict[Cell, list[tuple[float, float]]], dict[str, str]]:
    """For every method and budget the modules of all blocks, what they leave, and the reasons of those not offered."""
    modules: dict[Cell, dict[int, nn.Module]] = {}
    left: dict[Cell, list[tuple[float, float]]] = {}
    reasons: dict[str, str] = {}
    for part in parts(subject, chosen):
        began = time.process_time()
        for name, (make, budgets) in METHODS.items():
            for budget in budgets:
                if (only and name not in only) or budget in LEFT_OUT.get(subject.name, ()):
                    continue
                try:
                    with torch.inference_mode():
                        module = make(part, budget).eval()
                        left.setdefault((name, budget), []).append(held_out(part, module))
                    modules.setdefault((name, budget), {})[part.block] = module
                except ScaleMatters as error:
                    reasons[name] = str(error).partition(": ")[2]
        print(f"{subject.name}: block {part.block} {time.process_time() - began:.1f} s", flush=True)
    return modules, left, reasons


def with_parts(subject: Subject, modules: Mapping[int, nn.Module]) -> PreTrainedModel:
    """A copy of the model with these feed-forward parts."""
    small, architecture = deepcopy(subject.model), describe(subject.model)
    for i, module in modules.items():
        put_mlp(small, architecture, i, module)
    return small.eval()


def end(small: PreTrainedModel, subject: Subject) -> float:
    """Perplexity, or cosine of sentence embeddings, on the first report."""
    batches: Sequence[Batch] = next(iter(subject.reports.values()))
    if subject.language:
        return float(perplexity(small, batches).ppl)
    return float(state_similarity(subject.model, small, batches).cosine_pooled or 0.0)


def run(name: str, quick: bool, only: Sequence[str]) -> dict[str, Any]:
    """All methods at all budgets, or `only` these."""
    began = time.process_time()
    subject = made(name, quick)
    architecture = describe(subject.model)
    some = range(1, architecture.n_blocks, EVERY)
    ways = {"some": some} if name in FEW else {"some": some, "all": range(architecture.n_blocks)}
    modules, left, reasons = replaced(subject, only, list(ways.values())[-1])
    rows: list[dict[str, Any]] = []
    for (method, budget), each in modules.items():
        r2, cosines = zip(*left[method, budget], strict=True)
        row: dict[str, Any] = {
            "method": method, "budget": budget, "r2": fmean(r2), "cosine": fmean(cosines),
            "blocks": {"r2": [round(x, 5) for x in r2], "cosine": [round(x, 5) for x in cosines]},
        }  # fmt: skip
        for which, blocks in ways.items():
            row[which] = end(with_parts(subject, {i: each[i] for i in blocks}), subject)
        rows.append(row)
        print(json.dumps({"model": name, **{key: row[key] for key in row if key != "blocks"}}), flush=True)
    site = architecture["blocks.0.ffn.hidden"]
    return {
        "settings": subject.settings(), "report": next(iter(subject.reports)),
        "metric": "perplexity" if subject.language else "cosine",
        "dense": end(subject.model, subject) if subject.language else 1.0,
        "dense_budget": (len(site.writers) + 1) * site.units / architecture.hidden, "every": EVERY,
        "n_blocks": architecture.n_blocks, "not_offered": reasons, "cpu_seconds": round(time.process_time() - began),
        "rows": rows,
    }  # fmt: skip


def added(known: dict[str, Any], found: dict[str, Any], only: Sequence[str]) -> dict[str, Any]:
    """What was found, beside what is known of the other methods."""
    rows = [row for row in known["rows"] if row["method"] not in only] + found["rows"]
    return {
        **found,
        "not_offered": {**known["not_offered"], **found["not_offered"]},
        "cpu_seconds": known["cpu_seconds"] + found["cpu_seconds"],
        "rows": sorted(rows, key=lambda row: (list(METHODS).index(row["method"]), row["budget"])),
    }


def stored() -> dict[str, Any]:
    """What was measured before."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"benchmark": "mlp", "models": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="stories15M, minilm, smollm2 (default: all)")
    parser.add_argument("--only", nargs="*", default=[], help="methods to measure anew, e.g. cosine bypass")
    parser.add_argument("--quick", action="store_true", help="few tokens, to see that everything runs")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name in args.models or ("stories15M", "minilm", "smollm2"):
        found = run(name, args.quick, args.only)
        if not args.quick:
            results = stored()  # now: another run may have added to it
            known = results["models"].get(name)
            results["models"][name] = added(known, found, args.only) if known and args.only else found
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Tasks of the papers before and after compression: SST-2, answers on XQuAD, STS-B and MRPC.

    python benchmarks/tasks.py [sst2] [xquad] [sentences] [--budgets 0.7,0.6,0.5] [--threads 2]

sst2:      MiniLM trained on SST-2; calibrated on its training sentences, scored on the development set.
xquad:     MiniLM trained on three quarters of the articles of XQuAD to mark answers, and calibrated on them; exact
           match and F1 on the other articles.
sentences: MiniLM without a head; calibrated on sentences of the training parts of STS-B and MRPC, scored by cosines on
           the development set of STS-B and the test set of MRPC (threshold chosen on its training set, dense model).

One calibration serves all budgets, with the recipe `balanced`. Nothing that is scored was fitted on or chosen by. The
models come from `models.py`. Results go to benchmarks/results/tasks.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from cells import write_json
from models import model_folder
from reading import xquad_split
from recipes import shared_file
from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.gather import Reading, gather
from slimformer.calibrate.tasks import spread
from slimformer.evaluate.task import Options, evaluate_task
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model
from slimformer.plan import Budget
from slimformer.recipe import cut_settings, load_recipe
from slimformer.run import Run
from slimformer.steps import calibration
from slimformer.steps.make import make

RESULTS = Path(__file__).parent / "results" / "tasks.json"
TOKENS, DOCUMENTS = 16_384, 4_000  # to fit on, to read
RECIPE, SEED = "balanced", 0


@dataclass(frozen=True)
class Subject:
    """A model, what it is calibrated on, and the tasks it is scored on."""

    loaded: Loaded
    about: str
    calibration: list[Document]
    seq_len: int
    tasks: dict[str, Options]


@contextmanager
def sst2() -> Iterator[Subject]:
    """A classifier of sentences."""
    folder = shared_file("data", "sst2", "dev.tsv").parent
    train = spread(read_documents(folder / "train_full.tsv"), DOCUMENTS)
    yield Subject(load_model(model_folder("minilm-sst2")), "SST-2 dev", train, 128, {"sst2": Options(str(folder))})


@contextmanager
def xquad() -> Iterator[Subject]:
    """A reader that marks answers."""
    known, held_out = xquad_split()
    train = [
        Document(qa["question"], paragraph["context"], group=article["title"])
        for article in known
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dev-v1.1.json"
        file.write_text(json.dumps({"version": "1.1", "data": held_out}), encoding="utf-8")
        loaded = load_model(model_folder("minilm-xquad"))
        about = f"XQuAD en, {len(held_out)} articles that were not trained on"
        yield Subject(loaded, about, train, 256, {"squad": Options(folder, seq_len=384)})


@contextmanager
def sentences() -> Iterator[Subject]:
    """An encoder whose embeddings are compared."""
    folders = {"stsb": shared_file("data", "stsb", "dev.tsv").parent}
    folders["mrpc"] = shared_file("data", "mrpc", "msr_paraphrase_test.txt").parent
    files = (folders["stsb"] / "train.tsv", folders["mrpc"] / "msr_paraphrase_train.txt")
    pairs = [pair for file in files for pair in spread(read_documents(file), DOCUMENTS // 4)]
    train = [Document(text) for pair in pairs for text in (pair.text, pair.pair) if text]
    tasks = {task: Options(str(folder)) for task, folder in folders.items()}
    yield Subject(load_model("demo:minilm"), "STS-B dev, MRPC test", train, 128, tasks)


SUBJECTS: dict[str, Callable[[], Any]] = {"sst2": sst2, "xquad": xquad, "sentences": sentences}


def calibrated(subject: Subject, folder: Path, seconds: dict[str, float]) -> Run:
    """All that is needed for every budget, from one pass."""
    loaded = subject.loaded
    reading = Reading(seq_len=subject.seq_len, tokens=TOKENS, seed=SEED)
    data = gather(subject.calibration, loaded.model, loaded.processor, describe(loaded.model), reading)
    after = load_recipe(RECIPE).after_cut
    start = Run(loaded, loaded.model, data=data, folder=folder, seconds=seconds, after=after)
    return calibration.calibrated(start, cut_settings(RECIPE))


def scored(start: Run, subject: Subject, budget: float) -> dict[str, Any]:
    """One budget: what was kept, and every task."""
    made = make(start, Budget(budget), cut_settings(RECIPE))
    small = replace(subject.loaded, model=made.model, name=f"{RECIPE} {budget:g}")
    reports = {}
    for task, how in subject.tasks.items():
        found = evaluate_task(task, subject.loaded, small, replace(how, seed=SEED)).to_dict()
        reports[task] = {key: found[key] for key in ("examples", "unit", "metrics", "settings", "notes")}
    return {"budget": budget, "macs": round(made.decided.macs, 5), "tasks": reports}


def record(name: str, found: dict[str, Any], threads: int) -> None:
    """Put one subject into the file, beside those that are there."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    versions = {package: version(package) for package in ("slimformer", "torch", "transformers")}
    settings = {"recipe": RECIPE, "seed": SEED, "tokens": TOKENS, "threads": threads, "versions": versions}
    subjects = {**results.get("subjects", {}), name: found}
    ordered = {key: subjects[key] for key in SUBJECTS if key in subjects}
    write_json(RESULTS, {"benchmark": "tasks", "settings": settings, "subjects": ordered}, indent=1)


def run(name: str, budgets: list[float], threads: int) -> None:
    """One subject at all budgets."""
    seconds: dict[str, float] = {}
    with SUBJECTS[name]() as subject, tempfile.TemporaryDirectory() as scratch:
        start = calibrated(subject, Path(scratch), seconds)
        cells = []
        for budget in sorted(budgets, reverse=True):
            cells.append(scored(start, subject, budget))
            for task, report in cells[-1]["tasks"].items():
                for m in report["metrics"]:
                    line = f"{m['name']} {m['dense']:.2f} → {m['small']:.2f} (recovery {m['recovery']:.1f} %)"
                    print(f"{task} at {budget:g}: {line}, p {m['p']:.3f}", flush=True)
            record(name, {"about": subject.about, "seq_len": subject.seq_len, "cells": cells}, threads)


def main() -> None:
    """Run the subjects named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []], help="default: all")
    parser.add_argument("--budgets", default="0.7,0.6,0.5")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.subjects or SUBJECTS:
        run(name, [float(part) for part in args.budgets.split(",")], args.threads)


if __name__ == "__main__":
    main()

"""Trained models that no package registry carries, made once, seeded, and cached as Hugging Face folders.

    python benchmarks/models.py                  make the five models (about half an hour on two cores)
    python benchmarks/models.py vit-mnist        make one
    python benchmarks/models.py --list           show what exists, and how good it is

`model_folder(name)` gives the folder to other benchmarks and makes the model when it is missing. How each is
trained stands in `recipes.py` and `reading.py`. The same seed, machine and versions give the same weights; other
machines round differently.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import tokenizers
import torch
import transformers

from reading import READING
from recipes import END_OF_STORY, InputMissing, Recipe, stories_split
from recipes import RECIPES as OTHERS

__all__ = ["END_OF_STORY", "RECIPES", "InputMissing", "UnknownModel", "model_folder", "stories_split"]

RECIPES = {**OTHERS, **READING}

SEED = 0
N_THREADS = 2


class UnknownModel(Exception):
    """No recipe has this name."""


def recipe(name: str) -> Recipe:
    """The recipe of a name; a wrong name lists the right ones."""
    if name not in RECIPES:
        raise UnknownModel(f"there is no model {name!r}; choose from {', '.join(RECIPES)}")
    return RECIPES[name]


def cache_folder() -> Path:
    """$SLIMFORMER_CACHE, or ~/.cache/slimformer/benchmarks."""
    return Path(os.environ.get("SLIMFORMER_CACHE") or "~/.cache/slimformer/benchmarks").expanduser()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed and thread count for one training; the caller's own are put back afterwards."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(N_THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(n_threads)


def twentieths(losses: list[float]) -> list[float]:
    """The mean loss of each twentieth of the training."""
    cuts = [round(len(losses) * part / 20) for part in range(21)]
    return [round(fmean(losses[a:b]), 4) for a, b in pairwise(cuts) if a < b]


def build(name: str, folder: Path) -> None:
    """Train a model, save it in `folder`, measure what was saved, and write training.json beside it."""
    made, wall, cpu = recipe(name), time.monotonic(), time.process_time()
    with seeded(SEED):
        trained = made.train()
        trained.model.save_pretrained(folder)
        trained.reader.save_pretrained(folder)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        held_out = made.measure(folder)
    record = {
        "name": name,
        "seed": SEED,
        "steps": len(trained.losses),
        "minutes": round(wall / 60, 2),
        "cpu_minutes": round(cpu / 60, 2),  # over all threads; on a busy machine the better measure
        "held_out": {made.metric: held_out},
        "training_loss": twentieths(trained.losses),
        "parameters": trained.model.num_parameters(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def model_folder(name: str, *, force: bool = False) -> Path:
    """The folder of a trained model, made when it is missing (or, with `force`, made anew)."""
    recipe(name)
    folder = cache_folder() / name
    if folder.is_dir() and not force:
        return folder
    unfinished = folder.with_name(f".{name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        build(name, unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


# --- the shell ----------------------------------------------------------------------------------------------


def status(name: str) -> str:
    """One line about a model: what it is, and how good it is when it exists."""
    file = cache_folder() / name / "training.json"
    if not file.is_file():
        return f"{name:14s}{recipe(name).about:18s}not made yet"
    record = json.loads(file.read_text(encoding="utf-8"))
    quality = ", ".join(f"{metric} {value:.4f}" for metric, value in record["held_out"].items())
    size = f"{record['parameters'] / 1e6:.2f} M parameters"
    return f"{name:14s}{recipe(name).about:18s}{quality:30s}{size:20s}{record['minutes']} min"


def main() -> int:
    """Make the models named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description="Make and cache the trained models of the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(RECIPES)} (default: all)")
    parser.add_argument("--force", action="store_true", help="make a model anew although it exists")
    parser.add_argument("--list", action="store_true", help="show the models and leave")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        for name in options.names or RECIPES:
            if not options.list:
                print(f"{name}: {recipe(name).about}", flush=True)
                print(f"  {model_folder(name, force=options.force)}", flush=True)
            print(status(name), flush=True)
    except (InputMissing, UnknownModel) as error:
        print(f"models.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

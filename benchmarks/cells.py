"""Results that survive a kill: one JSON file for each cell, keyed by everything it depends on.

    cells/<method>-<budget>-<settings>-<code>.json     what one method reached at one budget
    scores/<weights>-<report>.json                     what a model with exactly these weights scored

The second is there because deciding is cheap and measuring is not: when code changes, every model is made anew, but
only those that came out different are measured again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from models import cache_folder
from subjects import Score, Scores, Subject, digest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "slimformer"
DECIDING = ("linalg", "decompose", "plan", "rewrite")  # folders whose code decides what is cut, and how
SIMULATING = ("linalg/damped.py", "linalg/moments.py", "decompose/reduction.py", "plan/cost.py")  # formulas they share
MEASURING = ("perplexity.py", "fidelity.py", "accuracy.py")


@dataclass(frozen=True)
class Cell:
    """What one method reached at one budget; `macs` and `params` are the fractions really kept."""

    method: str
    budget: float
    macs: float
    params: float
    sizes: dict[str, int]
    seconds: float  # to decide and cut, without measuring
    scores: Scores
    kv_cache: float | None = None  # share of the bytes kept, for decoders


def code_hash(files: Iterable[Path]) -> str:
    """A hash of what Python files do: comments, docstrings and layout do not count. Others by their bytes."""
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(files):
        text = file.read_text(encoding="utf-8")
        digest.update(file.name.encode())
        digest.update((ast.dump(_without_docstrings(text)) if file.suffix == ".py" else text).encode())
    return digest.hexdigest()


def _without_docstrings(text: str) -> ast.Module:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


@cache  # as it was when the run began, whatever is edited meanwhile
def deciding_code() -> str:
    """The code and the recipes that decide what a method does."""
    files = [file for folder in DECIDING for file in (PACKAGE / folder).glob("*.py")]
    recipes = (PACKAGE / "recipes").glob("*.yaml")
    alone = [PACKAGE / "steps" / f"{name}.py" for name in ("calibration", "make", "refine", "depth")]
    return code_hash([*files, *recipes, *alone, HERE / "baselines.py"])


@cache
def simulating_code() -> str:
    """The code that decides what the methods of `simulated.py` do; changes to ours do not concern them."""
    return code_hash([*HERE.glob("simulated*.py"), *(PACKAGE / name for name in SIMULATING)])


@cache
def measuring_code() -> str:
    """The code that measures a model."""
    return code_hash([PACKAGE / "evaluate" / name for name in MEASURING])


def settings_hash(settings: dict[str, Any]) -> str:
    """A short hash of settings, whatever their order."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=6).hexdigest()


def weights_hash(model: nn.Module) -> str:
    """A hash of every weight, to the last bit."""
    digest = hashlib.blake2b(digest_size=12)
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Cache:
    """The folder of one subject. With `keep_cells`, cells made by older code are taken as they are."""

    folder: Path
    settings: str
    code: str
    keep_cells: bool = False

    def cell(self, method: str, budget: float) -> Cell | None:
        """The cell, if it was computed before."""
        stem = f"{method}-{budget:g}-{self.settings}"
        files = [self.folder / "cells" / f"{stem}-{self.code}.json"]
        if self.keep_cells:
            files += sorted(self.folder.glob(f"cells/{stem}-*.json"), key=lambda file: -file.stat().st_mtime)
        for file in files:
            if file.is_file():
                data = json.loads(file.read_text())
                return Cell(**{**data, "scores": _scores(data["scores"])})
        return None

    def write_cell(self, cell: Cell) -> None:
        name = f"{cell.method}-{cell.budget:g}-{self.settings}-{self.code}.json"
        write_json(self.folder / "cells" / name, asdict(cell))

    def scores(self, weights: str, report: str) -> Scores | None:
        """The scores of a model with these weights on a report, if it was measured before."""
        file = self.folder / "scores" / f"{weights}-{report}.json"
        return _scores(json.loads(file.read_text())) if file.is_file() else None

    def write_scores(self, weights: str, report: str, scores: Scores) -> None:
        data = {name: asdict(score) for name, score in scores.items()}
        write_json(self.folder / "scores" / f"{weights}-{report}.json", data)


def measured(cache: Cache, subject: Subject, model: nn.Module, say: Callable[[str], None]) -> Scores:
    """Scores on every report; each is kept under the weights it belongs to."""
    key, out = weights_hash(model), dict[str, Score]()
    for report, batches in subject.reports.items():
        name = f"{report}-{digest(batches)}-{measuring_code()}"
        scores = cache.scores(key, name)
        if scores is None:
            say(report)
            scores = subject.measure(model, report)
            cache.write_scores(key, name, scores)
        out |= scores
    return out


def quality_folder(subject: str) -> Path:
    """Where cells, scores and moments of a subject are kept."""
    return cache_folder() / "quality" / subject


def write_json(file: Path, data: Any, *, indent: int | None = None) -> None:
    """Write a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(data, indent=indent) + "\n", encoding="utf-8")
    unfinished.replace(file)


def _scores(data: dict[str, Any]) -> Scores:
    return {name: Score(tuple(score["values"]), tuple(score["weights"])) for name, score in data.items()}

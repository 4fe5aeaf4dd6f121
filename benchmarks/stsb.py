"""How much of a sentence encoder is left: MiniLM at 70 and 50 % of its block MACs, without labels and without training.

    python benchmarks/stsb.py                        all recipes
    python benchmarks/stsb.py --quick --out FOLDER   few sentences, to see that it runs

Calibrated on sentences of STS-B train; no sentence of dev is among them. Reported on STS-B dev:

    Spearman    rank correlation of the cosine of two sentences with the score people gave the pair
    fidelity    mean cosine of the small model's embedding with the dense model's, sentence by sentence

An embedding is the mean of the last states over real tokens, as the model was trained. Differences to the dense model
and to `balanced` are bootstrapped over pairs, the same resamples for all. Exit code 1 when `balanced` is significantly
worse than another recipe. Results: benchmarks/results/stsb.json. About eight minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata, spearmanr
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from cells import HERE, deciding_code, write_json
from quality import calibrated_run
from recipes import shared_file
from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.splits import split_documents
from slimformer.calibrate.text import padded_batches
from slimformer.evaluate.intervals import mean_interval
from slimformer.files.versions import versions
from slimformer.models.load import load_model
from slimformer.plan import Budget
from slimformer.steps.make import make
from subjects import FULL, QUICK, SEED, Subject

BUDGETS = (0.7, 0.5)
RECIPES = ("stat", "uniform", "balanced")
OURS = "balanced"
LENGTH, RESAMPLES = 64, 2000
Vector = NDArray[np.float64]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs with the scores people gave them; `sentences` are all that occur, once."""

    sentences: tuple[str, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    scores: tuple[float, ...]


def dev_pairs(most: int | None) -> Pairs:
    """STS-B dev."""
    documents = read_documents(shared_file("data", "stsb", "dev.tsv"))[:most]
    sentences = tuple(dict.fromkeys(text for d in documents for text in (d.text, d.pair or "")))
    place = {text: i for i, text in enumerate(sentences)}
    sides = [(place[d.text], place[d.pair or ""], float(d.label)) for d in documents]
    first, second, scores = zip(*sides, strict=True)
    return Pairs(sentences, first, second, scores)


def minilm(pairs: Pairs, *, quick: bool) -> Subject:
    """The encoder with sentences of train, one to a row."""
    loaded, amount = load_model("demo:minilm"), QUICK if quick else FULL
    train = read_documents(shared_file("data", "stsb", "train.tsv"))
    held_out = {text.casefold() for text in pairs.sentences}
    texts = dict.fromkeys(text for d in train for text in (d.text, d.pair or "") if text.casefold() not in held_out)
    parts = split_documents([Document(text) for text in texts], seed=SEED, shares=(0.7, 0.28, 0.01, 0.01))
    calibration = {
        split: padded_batches(parts[split], loaded.processor, seq_len=LENGTH, tokens=tokens, batch_size=32)
        for split, tokens in (("fit", amount.fit), ("select", amount.select))
    }
    name = "minilm-stsb-quick" if quick else "minilm-stsb"
    return Subject(name, loaded, 32, calibration, {}, False, "STS-B train; dev")


@torch.inference_mode()
def embeddings(model: PreTrainedModel, processor: Any, sentences: Sequence[str]) -> Tensor:
    """Means of the last states over real tokens, in the order of the sentences."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # to pad little
    out = torch.zeros(len(sentences), model.config.hidden_size, dtype=torch.float64)
    for start in range(0, len(order), 64):
        index = order[start : start + 64]
        texts = [sentences[i] for i in index]
        inputs = processor(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        states, mask = model(**inputs).last_hidden_state.double(), inputs["attention_mask"].double()
        out[index] = torch.einsum("btd,bt->bd", states, mask) / mask.sum(1, keepdim=True)
    return out


def cosines(E: Tensor, pairs: Pairs) -> Vector:
    """The cosine of every pair."""
    found: Vector = cosine_similarity(E[list(pairs.first)], E[list(pairs.second)]).numpy()
    return found


def resampled(values: Vector, scores: Vector, draws: NDArray[np.int64]) -> Vector:
    """Spearman's correlation in every resample of the pairs."""
    a, b = (rankdata(x[draws], axis=1) for x in (values, scores))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    out: Vector = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return out


def interval(values: Vector) -> list[float]:
    """The middle 95 %."""
    return [float(end) for end in np.quantile(values, [0.025, 0.975])]


# --- models and their numbers -------------------------------------------------------------------------------


def all_embeddings(
    made: Subject, pairs: Pairs, say: Say
) -> tuple[Tensor, dict[tuple[str, float], tuple[float, Tensor]]]:
    """Embeddings of the dense model, and of every recipe at every budget with the MACs it keeps."""
    processor = made.loaded.processor
    dense = embeddings(made.model, processor, pairs.sentences)
    out = {}
    for name in RECIPES:
        run, settings = calibrated_run(made, name, say)
        for budget in BUDGETS:
            say(f"{name} {budget:g}")
            small = make(run, Budget(budget), settings)
            out[name, budget] = (small.decided.macs, embeddings(small.model.eval(), processor, pairs.sentences))
    return dense, out


def summary(dense: Tensor, found: Mapping[tuple[str, float], tuple[float, Tensor]], pairs: Pairs) -> dict[str, Any]:
    """Spearman and fidelity of everything, with intervals."""
    scores = np.asarray(pairs.scores)
    draws = np.random.default_rng(SEED).integers(len(scores), size=(RESAMPLES, len(scores)))
    values = {key: cosines(E, pairs) for key, (_, E) in found.items()} | {("dense", 1.0): cosines(dense, pairs)}
    spread = {key: resampled(each, scores, draws) for key, each in values.items()}
    rows = []
    for (recipe, budget), (macs, E) in found.items():
        key = (recipe, budget)
        alike = mean_interval(cosine_similarity(E, dense).tolist())
        rows.append({
            "recipe": recipe, "budget": budget, "macs": macs, "spearman": _spearman(values[key], scores),
            "to_dense": interval(spread[key] - spread["dense", 1.0]),
            "to_ours": interval(spread[key] - spread[OURS, budget]),
            "fidelity": alike.value, "fidelity_interval": [alike.low, alike.high],
        })  # fmt: skip
    dense_value = _spearman(values["dense", 1.0], scores)
    return {
        "dense": {"spearman": dense_value, "interval": interval(spread["dense", 1.0])},
        "cells": rows,
        "ours": OURS,
        "holds": all(row["to_ours"][0] <= 0 for row in rows),
    }


def _spearman(values: Vector, scores: Vector) -> float:
    return float(spearmanr(values, scores).statistic)


def table(results: Mapping[str, Any]) -> Table:
    """One line for each model."""
    out = Table(title=f"STS-B dev, dense {results['dense']['spearman']:.4f}", title_justify="left")
    for column in ("recipe", "MACs", "Spearman", "− dense", f"− {OURS}", "fidelity"):
        out.add_column(column, justify="right")
    for row in results["cells"]:
        gaps = [f"[{low:+.4f}, {high:+.4f}]" for low, high in (row["to_dense"], row["to_ours"])]
        out.add_row(row["recipe"], f"{row['macs']:.3f}", f"{row['spearman']:.4f}", *gaps, f"{row['fidelity']:.4f}")
    return out


def main() -> int:
    """Run, print, write, and say whether the claim holds."""
    parser = argparse.ArgumentParser(description="STS-B dev and embedding fidelity of smaller sentence encoders.")
    parser.add_argument("--quick", action="store_true", help="few sentences, to see that it runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for the result file")
    options, console, started = parser.parse_args(), Console(width=120), time.monotonic()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    pairs = dev_pairs(100 if options.quick else None)
    made = minilm(pairs, quick=options.quick)
    say = lambda text: console.print(f"{time.strftime('%H:%M:%S')} {text}")  # noqa: E731
    results = summary(*all_embeddings(made, pairs, say), pairs)
    console.print(table(results))
    settings = {
        **made.settings(), "pairs": len(pairs.scores), "sentences": len(pairs.sentences), "resamples": RESAMPLES,
        "versions": versions(), "code": deciding_code(),
    }  # fmt: skip
    if folder := options.out or (None if options.quick else HERE / "results"):
        write_json(folder / "stsb.json", {"benchmark": "stsb", "settings": settings, **results}, indent=1)
    console.print(f"{OURS} never significantly worse: {results['holds']}; {(time.monotonic() - started) / 60:.1f} min")
    return 0 if results["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""A cut at home and elsewhere: what was fitted × what is measured.

    python benchmarks/elsewhere.py smollm2 --budgets 0.8 --fit-tokens 8192 --tokens 8192
    python benchmarks/elsewhere.py minilm stories15M
    python benchmarks/elsewhere.py stories15M --quick --out FOLDER

Rows are what a model was fitted on: one narrow text alone (the manual that used to be the default, WikiText, SST-2, …),
the same with broad text added, as `compress --data` does, and the built-in text, as `compress` does without
`--data`. With `--part breadth` rows are amounts: tokens, kinds of built-in text, and how much broad text is added to
WikiText. Columns are texts none of which is in the built-in text: an encyclopedia (WikiText-2 test), news (MRPC), web
(C4), stories (TinyStories), code (modules of Python's standard library). Rivals get the same data. For language models
the cells are excess nats per token over the dense model, for MiniLM Spearman on STS-B dev, mean reciprocal rank of
questions among sentences (QNLI dev) and fidelity (mean cosine to the dense embedding), with 95 % intervals over
documents or pairs.

A run that is stopped goes on where it was: every cell is written to the result file when it is made.
Results: benchmarks/results/elsewhere.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
import transformers
from scipy.stats import spearmanr
from torch import Tensor

from cells import HERE, write_json
from recipes import shared_file
from slimformer.calibrate import gather as gathering
from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.calibrate.splits import split_documents
from slimformer.calibrate.text import Batch, packed_batches
from slimformer.evaluate.intervals import mean_interval, paired_difference, score_interval
from slimformer.evaluate.perplexity import perplexity
from slimformer.files.versions import versions
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model
from slimformer.plan import Budget
from slimformer.recipe import cut_settings, load_recipe
from slimformer.run import Run
from slimformer.steps.calibration import calibrated
from slimformer.steps.make import make
from stsb import embeddings

SEED = 0
BUDGETS = (0.8, 0.6, 0.5)
RIVALS = ("stat", "uniform")
AMOUNTS = (4_096, 16_384, 65_536, 131_072)  # tokens
OPENING = 2_000  # characters
SHARES_ADDED = (0.0, 0.25, 0.5, 1.0)
CODE = ("argparse", "inspect", "tarfile", "mailbox", "statistics", "asyncio.base_events", "email.message", "heapq")


@dataclass(frozen=True)
class Amount:
    """Tokens to fit on (none: the default), and tokens, pairs or questions of every text that is measured on."""

    fit: int | None = None
    tokens: int = 16_384
    pairs: int = 1_500
    questions: int = 1_000


FULL, QUICK = Amount(), Amount(2_048, 1_024, 100, 60)


@dataclass(frozen=True)
class Fit:
    """What a model is fitted on: a source as `gather` reads it, with broad text added or alone, and a recipe.

    `share` is how many tokens of broad text are added for every token of the source, where not as by default.
    """

    name: str
    source: Any
    broad: bool
    recipe: str = "balanced"
    tokens: int | None = None  # None: as all
    budgets: tuple[float, ...] = BUDGETS
    share: float | None = None


# --- texts ------------------------------------------------------------------------------------------------------


def manual() -> list[Document]:
    """The technical English that comes with Python: what the default used to be."""
    return [Document(text.strip()) for text in topics.values() if text.strip()]


def code() -> list[Document]:
    """Functions and classes of some modules of the standard library, a few hundred lines each."""
    documents = []
    for name in CODE:
        spec = importlib.util.find_spec(name)
        lines = Path(str(spec.origin)).read_text("utf-8").splitlines() if spec else []
        documents += [Document("\n".join(lines[i : i + 60])) for i in range(0, len(lines), 60)]
    return documents


def news() -> list[Document]:
    """Sentences of news, from the test part of MRPC."""
    rows = shared_file("data", "mrpc", "msr_paraphrase_test.txt").read_text("utf-8-sig").splitlines()[1:]
    return [Document("\n".join(row.split("\t")[3:5])) for row in rows]


def texts_elsewhere() -> dict[str, list[Document]]:
    """Texts to measure language models on; documents in an order that depends on their content alone."""
    c4 = read_documents(shared_file("data", "c4_sample", "c4_sample.jsonl"))
    stories = read_documents(shared_file("data", "tinystories_sample", "tinystories_sample.txt"))
    parts = {
        "encyclopedia": read_documents(shared_file("data", "wikitext2", "test.txt")),
        "news": news(), "web": c4, "stories": split_documents(stories, seed=SEED)["report"], "code": code(),
    }  # fmt: skip
    rng = np.random.default_rng(SEED)
    return {name: [opening(documents[i]) for i in rng.permutation(len(documents))] for name, documents in parts.items()}


def opening(document: Document) -> Document:
    """What a document begins with: so many of them have their say."""
    return replace(document, text=document.text[:OPENING])


def stories_to_fit() -> list[Document]:
    """Stories none of which is measured on."""
    stories = read_documents(shared_file("data", "tinystories_sample", "tinystories_sample.txt"))
    parts = split_documents(stories, seed=SEED)
    return [*parts["fit"], *parts["select"], *parts["certify"]]


# --- language models --------------------------------------------------------------------------------------------


def windows(documents: Sequence[Document], loaded: Loaded, seq_len: int, tokens: int) -> list[Batch]:
    numbered = [replace(document, number=i) for i, document in enumerate(documents)]
    return packed_batches(numbered, loaded.processor, seq_len=seq_len, tokens=tokens)


def language_judge(loaded: Loaded, amount: Amount) -> Callable[[Any], dict[str, Any]]:
    """Excess nats per token over the dense model on every text, with intervals over documents."""
    seq_len = min(512, int(loaded.model.config.max_position_embeddings))
    sets = {name: windows(docs, loaded, seq_len, amount.tokens) for name, docs in texts_elsewhere().items()}
    dense = {name: perplexity(loaded.model, batches) for name, batches in sets.items()}

    def judge(small: Any) -> dict[str, Any]:
        scores: dict[str, Any] = {}
        for name, batches in sets.items():
            found = perplexity(small, batches)
            gap = excess(dense[name], found)
            scores[name] = {"excess": gap.value, "low": gap.low, "high": gap.high,
                            "dense": dense[name].ppl, "small": found.ppl}  # fmt: skip
        return scores

    return judge


def excess(dense: Any, small: Any) -> Any:
    """The difference in nats per token with its interval."""
    return paired_difference(
        list(dense.nll_per_document), list(small.nll_per_document), weights=list(dense.tokens_per_document)
    )


def language_fits(name: str) -> list[Fit]:
    wikitext = str(shared_file("data", "wikitext2", "valid.txt"))
    fits = [
        Fit("one manual (the old default)", manual(), False),
        Fit("WikiText alone", wikitext, False),
        Fit("WikiText, broad text added", wikitext, True),
        Fit("built-in text (the default)", "builtin", True),
        *(Fit("built-in text (the default)", "builtin", True, recipe) for recipe in RIVALS),
        *(Fit("WikiText alone", wikitext, False, recipe) for recipe in RIVALS),
    ]
    if name == "stories15M":
        fits += [
            Fit("stories alone", stories_to_fit(), False),
            Fit("stories, broad text added", stories_to_fit(), True),
            Fit("text of its own", "self", False),
        ]
    return fits


def breadth_fits(budgets: tuple[float, ...]) -> list[Fit]:
    """Amounts of the built-in text, kinds of it, and how much of it is added to WikiText."""
    wikitext = str(shared_file("data", "wikitext2", "valid.txt"))
    kinds = ("encyclopedia", "encyclopedia+code", "encyclopedia+code+stories+dialogue")
    return [
        *(Fit(f"built-in text, {n:,} tokens", "builtin", True, tokens=n, budgets=budgets) for n in AMOUNTS),
        *(Fit(f"built-in text: {kind}", f"builtin:{kind}", False, budgets=budgets) for kind in kinds),
        *(Fit(f"WikiText, {s:g} of broad text added", wikitext, True, budgets=budgets, share=s) for s in SHARES_ADDED),
    ]


# --- sentence encoders ------------------------------------------------------------------------------------------


def encoder_judge(loaded: Loaded, amount: Amount) -> Callable[[Any], dict[str, Any]]:
    """STS-B dev, questions among sentences of QNLI dev, and fidelity on SST-2 dev, with intervals over pairs."""
    pairs = read_documents(shared_file("data", "stsb", "dev.tsv"))[: amount.pairs]
    qnli = [d for d in read_documents(shared_file("data", "qnli", "dev.tsv")) if d.label in ("entailment", 0)]
    qnli = qnli[: amount.questions]
    sst2 = [d.text for d in read_documents(shared_file("data", "sst2", "dev.tsv"))][: amount.questions]
    golds = np.array([float(d.label) for d in pairs])  # type: ignore[arg-type]
    texts = [*(d.text for d in pairs), *(d.pair or "" for d in pairs)]
    questions, answers = [d.text for d in qnli], [d.pair or "" for d in qnli]

    def read(model: Any) -> dict[str, Tensor]:
        groups = {"sts": texts, "questions": questions, "answers": answers, "sst2": sst2}
        return {name: unit(embeddings(model, loaded.processor, each)) for name, each in groups.items()}

    dense = read(loaded.model)

    def judge(small: Any) -> dict[str, Any]:
        E = read(small)
        n = len(pairs)
        values = (E["sts"][:n] * E["sts"][n:]).sum(1).numpy()
        ranks = reciprocal_ranks(E["questions"], E["answers"])
        alike = (E["sst2"] * dense["sst2"]).sum(1).tolist()
        return {
            "STS-B": spearman_interval(values, golds),
            "retrieval": shown(mean_interval(ranks)),
            "fidelity on SST-2": shown(mean_interval(alike)),
        }

    return judge


def unit(E: Tensor) -> Tensor:
    return E / E.norm(dim=1, keepdim=True)


def reciprocal_ranks(questions: Tensor, answers: Tensor) -> list[float]:
    """One over the place of the right sentence among all."""
    scores = questions @ answers.mT
    places = (scores > scores.diagonal()[:, None]).sum(1) + 1
    return (1 / places.double()).tolist()


def spearman_interval(values: Any, golds: Any) -> dict[str, float]:
    return shown(score_interval(lambda x, y: float(spearmanr(x, y).statistic), values, golds, seed=SEED))


def shown(interval: Any) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def sentences(folder: str, file: str) -> list[Document]:
    """Single sentences of a table, each once."""
    documents = read_documents(shared_file("data", folder, file))
    texts = dict.fromkeys(text for d in documents for text in (d.text, d.pair) if text)
    return [Document(text) for text in texts]


def encoder_fits(_name: str) -> list[Fit]:
    stsb, sst2 = sentences("stsb", "train.tsv"), sentences("sst2", "train_full.tsv")[:20_000]
    wikitext = str(shared_file("data", "wikitext2", "valid.txt"))
    return [
        Fit("one manual (the old default)", manual(), False),
        Fit("STS-B train alone", stsb, False),
        Fit("STS-B train, broad text added", stsb, True),
        Fit("SST-2 train alone", sst2, False),
        Fit("SST-2 train, broad text added", sst2, True),
        Fit("WikiText alone", wikitext, False),
        Fit("built-in text (the default)", "builtin", True),
        *(Fit("built-in text (the default)", "builtin", True, recipe) for recipe in RIVALS),
    ]


# --- cells ------------------------------------------------------------------------------------------------------

SUBJECTS: dict[str, tuple[Callable[[], Loaded], Callable[..., Any], Callable[[str], list[Fit]]]] = {
    "smollm2": (lambda: load_model("demo:smollm2"), language_judge, language_fits),
    "stories15M": (
        lambda: load_model(str(shared_file("models", "stories15M", "config.json").parent)),
        language_judge,
        language_fits,
    ),
    "minilm": (lambda: load_model("demo:minilm"), encoder_judge, encoder_fits),
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Which rows are wanted: of the matrix of texts, or of amounts; those whose name and recipe hold `only`."""

    part: str = "matrix"
    only: str | None = None


def data_of(fit: Fit, loaded: Loaded, amount: Amount) -> Data:
    default = gathering.FIT_SHARE
    try:
        gathering.FIT_SHARE = default if fit.share is None else fit.share
        reading = Reading(tokens=fit.tokens or amount.fit, seed=SEED, broad=fit.broad)
        return gather(fit.source, loaded.model, loaded.processor, describe(loaded.model), reading)
    finally:
        gathering.FIT_SHARE = default


def run(name: str, amount: Amount, file: Path, rows: Rows, budgets: Sequence[float]) -> None:
    """Every cell of one model that is not in the file yet."""
    open_model, make_judge, list_fits = SUBJECTS[name]
    loaded = open_model()
    judge: Callable[[Any], dict[str, Any]] | None = None
    for fit in breadth_fits(tuple(budgets)) if rows.part == "breadth" else list_fits(name):
        wanted = [b for b in budgets if b in fit.budgets and key(name, fit, b) not in cells(file)]
        if not wanted or (rows.only and rows.only not in f"{fit.name} {fit.recipe}"):
            continue
        judge = judge or make_judge(loaded, amount)
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="elsewhere-") as scratch:
            data = data_of(fit, loaded, amount)
            settings, after = cut_settings(fit.recipe), load_recipe(fit.recipe).after_cut
            run = calibrated(Run(loaded, loaded.model, data=data, folder=Path(scratch), after=after), settings)
            for budget in wanted:
                made = make(run, Budget(budget), settings)
                scores = judge(made.model)
                seconds, started = time.monotonic() - started, time.monotonic()
                cell = {
                    "model": name, "fit": fit.name, "recipe": fit.recipe, "broad": fit.broad, "budget": budget,
                    "part": rows.part, "macs": made.decided.macs,
                    "tokens": data.tokens, "seconds": round(seconds), "scores": scores,
                }  # fmt: skip
                keep(file, key(name, fit, budget), cell)
                brief = {text: round(score.get("excess", score.get("value")), 3) for text, score in scores.items()}
                print(f"{name} · {fit.name} · {fit.recipe} · {budget:g}: {brief} ({seconds:.0f} s)", flush=True)


def key(name: str, fit: Fit, budget: float) -> str:
    return f"{name} | {fit.name} | {fit.recipe} | {budget:g}"


def cells(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text("utf-8"))["cells"])
    except FileNotFoundError:
        return {}


def keep(file: Path, name: str, cell: Mapping[str, Any]) -> None:
    write_json(
        file,
        {"benchmark": "elsewhere", "versions": versions(), "seed": SEED, "cells": {**cells(file), name: cell}},
        indent=1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=list(SUBJECTS))
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--only", help="rows whose name and recipe hold this text")
    parser.add_argument("--part", default="matrix", choices=("matrix", "breadth"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fit-tokens", type=int, help="to fit on; as much as by default without it")
    parser.add_argument("--tokens", type=int, default=FULL.tokens, help="of every text that is measured on")
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it runs")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    file = options.out / "elsewhere.json"
    for name in options.models:
        budgets = [float(b) for b in options.budgets.split(",")]
        amount = QUICK if options.quick else replace(FULL, fit=options.fit_tokens, tokens=options.tokens)
        run(name, amount, file, Rows(options.part, options.only), budgets)


if __name__ == "__main__":
    main()

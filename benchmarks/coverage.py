"""How often intervals of 95 % hold the truth, on real documents and with the default amounts.

    python benchmarks/coverage.py            writes results/coverage.json

A population is a set of real documents, each scored once by a dense model and by one cut to 70 % of its MACs. Samples
of the default size are then drawn from it with replacement, as fresh documents of the same kind would be; each sample
gives the interval that a report would print, and the value of the whole population either lies in it or does not.
`bootstrap` is what was printed before: percentiles over windows of 512 tokens, which are not independent.

The constants of `evaluate.intervals` were chosen with all sources but QNLI (questions) in sight. Documents are scored
one by one, from their start, not across separators as in a run.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom, multinomial

from recipes import shared_file
from slimformer import compress
from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.gather import SHARE, TOKENS
from slimformer.evaluate.intervals import paired_difference, paired_shares, positive_interval, share_interval
from slimformer.evaluate.perplexity import evaluating
from slimformer.models.load import load_model

RESULTS = Path(__file__).parent / "results" / "coverage.json"
WINDOW = 512
LONGEST = 8192  # tokens of a document
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Windows:
    """Rows of up to 512 tokens: document, tokens, nll of dense and small, KL and agreement, all but the first sums."""

    rows: Array

    @property
    def documents(self) -> Array:
        """The same sums by document: tokens, nll dense, nll small, KL, agreed."""
        _, index = np.unique(self.rows[:, 0], return_inverse=True)
        return np.stack([np.bincount(index, column) for column in self.rows[:, 1:].T], 1)


def score(dense: Any, small: Any, tokenizer: Any, documents: Sequence[Document]) -> Windows:
    """Every document alone, in windows of 512 tokens; what is summed are the positions that predict a token."""
    rows = []
    for i, document in enumerate(documents):
        ids = torch.tensor(tokenizer(document.text, verbose=False)["input_ids"][:LONGEST])
        for part in ids.split(WINDOW):
            if len(part) < 2:
                continue
            with evaluating(dense, small):
                p, q = (model(input_ids=part[None]).logits[0, :-1].log_softmax(-1) for model in (dense, small))
            nll = [float(-scores.gather(1, part[1:, None]).sum()) for scores in (p, q)]
            apart = float((p.exp() * (p - q)).sum())
            rows.append([i, len(part) - 1, *nll, apart, int((p.argmax(-1) == q.argmax(-1)).sum())])
    return Windows(np.array(rows, dtype=np.float64))


# --- one sample, as a report would have it ------------------------------------------------------------------


def draw(windows: Windows, tokens: int, rng: np.random.Generator) -> Windows:
    """Documents until there are so many tokens; the last one is cut off there, and the rest of it unread."""
    first = np.searchsorted(windows.rows[:, 0], np.arange(windows.rows[-1, 0] + 2))
    chosen: list[Array] = []
    left = float(tokens)
    for number in range(tokens):
        i = rng.integers(len(first) - 1)
        for row in windows.rows[first[i] : first[i + 1]]:
            share = min(1.0, left / row[1])
            chosen.append(np.array([number, *(share * row[1:])]))
            left -= row[1]
            if left <= 0:
                return Windows(np.array(chosen))
    raise ValueError("documents without tokens")


Interval = tuple[float, float] | None


def of_documents(sample: Windows) -> dict[str, Interval]:
    """What `evaluate.compare` prints; none for a single document."""
    d = sample.documents
    d = d[d[:, 0] > 0.5]
    if len(d) < 2:
        return {"nats": None, "kl": None, "agreement": None}
    n, before, after, kl, agreed = d.T
    found = {
        "nats": paired_difference((before / n).tolist(), (after / n).tolist(), weights=n.tolist()),
        "kl": positive_interval((kl / n).tolist(), weights=n.tolist()),
        "agreement": share_interval((agreed / n).tolist(), weights=n.tolist()),
    }
    return {name: (each.low, each.high) for name, each in found.items()}


def of_windows(sample: Windows) -> dict[str, Interval]:
    """Percentiles of a bootstrap over windows."""
    _, n, before, after, kl, agreed = sample.rows.T
    index = np.random.default_rng(0).integers(len(n), size=(400, len(n)))
    weight = n[index].sum(1)
    sums = {"nats": after - before, "kl": kl, "agreement": agreed}
    ends = {name: np.quantile(x[index].sum(1) / weight, [0.025, 0.975]) for name, x in sums.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def covered(windows: Windows, trials: int) -> dict[str, Any]:
    """Coverage of each number in percent, at the tokens it is measured on by default."""
    total = windows.documents.sum(0)
    truth = {"nats": (total[2] - total[1]) / total[0], "kl": total[3] / total[0], "agreement": total[4] / total[0]}
    tokens = int(SHARE["report"] * TOKENS)
    found: dict[str, dict[str, list[float]]] = {
        name: {key: [] for key in ("interval", "bootstrap", "documents", "width")} for name in truth
    }
    rng = np.random.default_rng(1)
    for _ in range(trials):
        whole = draw(windows, tokens, rng)
        intervals = {"interval": of_documents(whole), "bootstrap": of_windows(whole)}
        for name, each in found.items():
            each["documents"].append(len(np.unique(whole.rows[:, 0])))
            for method, ends_of in intervals.items():
                if (ends := ends_of[name]) is not None:
                    each[method].append(ends[0] <= truth[name] <= ends[1])
                    each["width"] += [ends[1] - ends[0]] if method == "interval" else []
    return {
        name: {
            "truth": float(truth[name]), "tokens": tokens,
            "documents": float(np.mean(each["documents"])), "width": float(np.median(each["width"])),
            "no_interval": 1 - len(each["interval"]) / trials,
            "interval": float(100 * np.mean(each["interval"])), "bootstrap": float(100 * np.mean(each["bootstrap"])),
        }
        for name, each in found.items()
    }  # fmt: skip


# --- classifiers: one row, one example ----------------------------------------------------------------------


RATES = ((0.97, 0.02, 0.01), (0.90, 0.06, 0.04), (0.995, 0.004, 0.001))  # agree, only dense right, only small right
RARE = 1e-9  # outcomes that are left out, each


def examples() -> Iterator[dict[str, Any]]:
    """Agreement and difference of accuracy of two classifiers at chosen rates: few, some and many pairs differ.

    Nothing is drawn: intervals of all outcomes are looked at, with their probabilities. The last number of examples is
    what a report has by default of single sentences.
    """
    for n in (60, 100, 400, default_examples()):
        for same, worse, better in RATES:
            outcomes = [
                (b, c, multinomial.pmf([n - b - c, b, c], n, [same, worse, better]))
                for b, c in likely(n, worse, better)
            ]
            held = {"agreement": 0.0, "accuracy": 0.0}
            for b, c, chance in outcomes:
                a = n - b - c
                share = share_interval([1.0] * a + [0.0] * (b + c))
                gap = paired_shares([1.0] * (a + b) + [0.0] * c, [1.0] * a + [0.0] * b + [1.0] * c)
                held["agreement"] += chance * (share.low <= same <= share.high)
                held["accuracy"] += chance * (gap.low <= better - worse <= gap.high)
            total = sum(chance for _, _, chance in outcomes)
            found = {name: float(100 * each / total) for name, each in held.items()}
            yield {"examples": n, "agreement": same, "difference": better - worse, "covered": found}


def likely(n: int, worse: float, better: float) -> list[tuple[int, int]]:
    """Numbers of pairs only the dense, and only the small model has right; all but a billionth of either."""
    sides = [[k for k in range(n + 1) if binom.pmf(k, n, rate) > RARE] for rate in (worse, better)]
    return [(b, c) for b in sides[0] for c in sides[1] if b + c <= n]


def default_examples() -> int:
    """How many sentences of SST-2 the tokens of a report are, in the words of a BERT."""
    tokenizer = load_model("demo:minilm").processor
    texts = [document.text for document in read_documents(shared_file("data", "sst2", "dev.tsv"))]
    each = [len(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]]
    return round(SHARE["report"] * TOKENS * len(each) / sum(each))


SOURCES: dict[str, tuple[tuple[str, ...], ...]] = {
    "TinyStories": (("data", "tinystories_sample", "tinystories_sample.txt"),),
    "C4": (("data", "c4_sample", "c4_sample.jsonl"),),
    "WikiText-2": (("data", "wikitext2", "valid.txt"), ("data", "wikitext2", "test.txt")),
    "MRPC": (("data", "mrpc", "msr_paraphrase_test.txt"), ("data", "mrpc", "msr_paraphrase_train.txt")),
    "QNLI": (("data", "qnli", "dev.tsv"),),
}
POPULATIONS = {  # model → how many documents of each source, so that scoring takes minutes
    "stories260K": {"TinyStories": 1500, "C4": 600, "WikiText-2": 120, "MRPC": 3000, "QNLI": 3000},
    "stories15M": {"TinyStories": 400},
}


def populations(folder: Path | None) -> Iterator[tuple[str, str, Windows]]:
    """Model, source and the scores of its documents: from the folder, or scored now and kept there if there is one."""
    for name, sizes in POPULATIONS.items():
        models = functools.cache(functools.partial(dense_and_small, name))
        for source, most in sizes.items():
            file = folder / f"{name}--{source}.npy" if folder else None
            if file is None or not file.is_file():
                known = [d for each in SOURCES[source] for d in read_documents(shared_file(*each))]
                order = np.random.default_rng(0).permutation(len(known))[:most]
                print(f"{name} on {len(order)} documents of {source}", flush=True)
                windows = score(*models(), [known[i] for i in order])
                if file is not None:
                    np.save(file, windows.rows)
            yield name, source, Windows(np.load(file)) if file is not None else windows


def dense_and_small(name: str) -> tuple[Any, Any, Any]:
    """A model, the same at 70 % of its MACs, and their tokenizer."""
    place = str(shared_file("models", name, "config.json").parent)
    story = str(shared_file(*SOURCES["TinyStories"][0]))
    small = compress(place, story, macs=0.7, tokens=16_384, timing=False, refine=False).model
    loaded = load_model(place)
    return loaded.model, small, loaded.processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--only-examples", action="store_true", help="classifiers alone; documents stay as they are")
    parser.add_argument("--scores", type=Path, help="folder to keep scored populations in, or to take them from")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    started, rows = time.monotonic(), []
    torch.set_num_threads(1)
    if args.only_examples:
        known = json.loads(args.out.read_text())
        args.out.write_text(json.dumps({**known, "examples": list(examples())}, indent=1) + "\n")
        return
    if args.scores:
        args.scores.mkdir(parents=True, exist_ok=True)
    for model, source, windows in populations(args.scores):
        documents = windows.documents
        found = covered(windows, args.trials)
        facts = {"model": model, "source": source, "documents": len(documents), "tokens": float(documents[:, 0].sum())}
        rows.append({**facts, "covered": found})
        print(
            model, source, {name: {k: round(v, 2) for k, v in each.items()} for name, each in found.items()}, flush=True
        )
    result = {
        "benchmark": "coverage",
        "trials": args.trials,
        "documents": rows,
        "examples": list(examples()),
    }
    args.out.write_text(json.dumps({**result, "seconds": round(time.monotonic() - started)}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Heads without training, beside trained ones on the same features.

    python benchmarks/heads.py                 every section
    python benchmarks/heads.py digits few      some

    digits   scikit-learn's digits and MNIST, raw pixels and the small ViT
    pairs    MRPC and STS-B from frozen MiniLM, |u − v| and u ∘ v
    sst2     SST-2 from frozen MiniLM: accuracy on dev and test, McNemar, fit time
    memory   the same fit, streamed and in memory, each in a process of its own: peak resident memory
    few      8, 32 and 128 rows of each class; 5 % against 95 %
    rehead   a classifier at half of its MACs with its old head and with a fresh one
    lm       the head of a story model for encyclopaedia articles

Features come from benchmarks/heads_features.py. Each section writes benchmarks/results/heads-<section>.json. Trained
baselines: logistic regression of scikit-learn on standardised features, C by cross-validation where rows are few.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heads_features import cache_folder, features, sst2_so_far
from slimformer.evaluate.intervals import mcnemar, mean_interval, score_interval
from slimformer.evaluate.predictions import calibration_error, macro_f1
from slimformer.evaluate.scores import spearman
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.asked import ADAPTATIONS

RESULTS = Path(__file__).parent / "results"
HEADS: dict[str, dict[str, Any]] = {
    "LDA": {"kind": "lda"},
    "ridge": {"kind": "ridge"},
    "Newton steps": {"kind": "newton"},
    "random features": {"kind": "random", "random_features": 2000},
    "class means": {"kind": "ncm"},
}
TRAINED = "logistic regression"
Part = tuple[np.ndarray, np.ndarray]


def logistic(n: int) -> Any:
    """Logistic regression on standardised features; C by five-fold cross-validation below 3,000 rows."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if n < 3000:
        best = LogisticRegressionCV(
            Cs=(1e-3, 1e-2, 1e-1, 1.0), cv=min(5, n // 4), max_iter=300, l1_ratios=(0.0,), use_legacy_attributes=False
        )
        return make_pipeline(StandardScaler(), best)
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))


def timed_fit(model: Any, X: np.ndarray, y: np.ndarray) -> tuple[Any, float]:
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return model, time.process_time() - started


def classify(train: Part, tests: dict[str, Part], heads: dict[str, dict[str, Any]] = HEADS) -> list[dict[str, Any]]:
    """Every head and the trained one on the same features, compared example by example."""
    fitted = {TRAINED: timed_fit(logistic(len(train[0])), *train)}
    fitted |= {name: timed_fit(AnalyticHead(**how), *train) for name, how in heads.items()}
    rows = []
    for name, (model, seconds) in fitted.items():
        row: dict[str, Any] = {"head": name, "cpu_seconds": seconds, "tests": {}}
        if name != TRAINED:
            row |= {"shrinkage": model.shrinkage_, "loo_error": model.loo_error_, "steps": model.n_iter_}
        for part, (X, y) in tests.items():
            predicted = model.predict(X)
            right = predicted == y
            found = vars(mean_interval(right.astype(float).tolist()))
            found["ece"] = calibration_error(model.predict_proba(X), right.astype(float))
            found["macro_f1"] = macro_f1(predicted, y)
            if name != TRAINED:
                found["p"] = mcnemar(fitted[TRAINED][0].predict(X) == y, right)
            row["tests"][part] = found
        rows.append(row)
    return rows


def part(found: dict[str, torch.Tensor], name: str, kind: str) -> Part:
    return found[f"{name}.{kind}"].double().numpy(), found[f"{name}.y"].numpy()


def digits() -> dict[str, Any]:
    """1,000 digits to fit on, the others to test; MNIST's own test part."""
    sets = {}
    small, order = features("digits"), np.random.default_rng(0).permutation(1797)
    for kind in ("pixels", "vit"):
        X, y = part(small, "all", kind)
        train, test = order[:1000], order[1000:]
        sets[f"digits, {kind}"] = classify((X[train], y[train]), {"test": (X[test], y[test])})
    if (cache_folder() / "mnist.safetensors").is_file():
        found = features("mnist")
        for kind in ("pixels", "vit"):
            sets[f"MNIST, {kind}"] = classify(part(found, "train", kind), {"test": part(found, "test", kind)})
    return {"sets": sets, "rows": {"digits": 1000, "MNIST": 10_000}}


def pairs() -> dict[str, Any]:
    """Paraphrases as classes, likeness as a number."""
    from sklearn.linear_model import RidgeCV

    out: dict[str, Any] = {}
    stsb = features("stsb")
    train, dev = ((stsb[f"{p}.compare"].double().numpy(), stsb[f"{p}.y"].double().numpy()) for p in ("train", "dev"))
    regressions = {"ridge": AnalyticHead("ridge", target="numbers"), "RidgeCV": RidgeCV(np.logspace(-3, 3, 13))}
    alone = features("cosines")
    rows = [
        {"head": "cosine, nothing fitted", **_spearman(*(alone[f"dev.{k}"].double().numpy() for k in ("cosine", "y")))}
    ]
    for name, model in regressions.items():
        model, seconds = timed_fit(model, *train)
        rows.append({"head": name, "cpu_seconds": seconds, **_spearman(model.predict(dev[0]), dev[1])})
    out["stsb"] = rows
    if (cache_folder() / "mrpc.safetensors").is_file():
        found = features("mrpc")
        out["mrpc"] = classify(part(found, "train", "compare"), {"test": part(found, "test", "compare")})
        out["mrpc_rows"] = len(found["train.y"])
    return out


def _spearman(predicted: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    return vars(score_interval(spearman, predicted, truth, resamples=500))


def sst2() -> dict[str, Any]:
    """All rows of SST-2 that are extracted."""
    found = sst2_so_far()
    tests = {name: part(found, name, "mean") for name in ("dev", "test")}
    rows = classify(part(found, "train", "mean"), tests)
    return {"rows": len(found["train.y"]), "heads": rows}


def memory() -> dict[str, Any]:
    """Peak memory of a process that only imports, that streams a quarter and all of the rows, and that holds all."""
    out = {}
    for what in ("nothing", "quarter", "stream", "newton", "logistic"):
        done = subprocess.run(
            [sys.executable, __file__, "--inside", what], capture_output=True, text=True, check=True
        )  # fmt: skip
        out[what] = json.loads(done.stdout.splitlines()[-1])
    return {"rows": out["stream"]["rows"], "processes": out}


class _Files:
    """Rows and labels of each file in turn, as often as they are asked for."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        from safetensors import safe_open

        for file in self.files:
            with safe_open(file, "pt") as opened:
                yield opened.get_tensor("train.mean"), opened.get_tensor("train.y")


def inside(what: str) -> dict[str, Any]:
    """One of the processes of `memory`."""
    files = sorted((cache_folder() / "sst2").glob("train-*.safetensors"))
    import sklearn.linear_model  # noqa: F401 - in all of them, so that it cancels

    rows, started = 0, time.process_time()
    if what in ("stream", "quarter", "newton"):
        head = AnalyticHead("newton" if what == "newton" else "lda")
        parts = _Files(files[: len(files) // 4] if what == "quarter" else files)
        for X, y in parts:
            head.partial_fit(X, y)
            rows += len(y)
        head.polish(parts) if what == "newton" else head.solution()
    elif what == "logistic":
        found = sst2_so_far()
        timed_fit(logistic(10**6), *part(found, "train", "mean"))
        rows = len(found["train.y"])
    return {"peak_bytes": peak_resident(), "rows": rows, "cpu_seconds": time.process_time() - started}


def peak_resident() -> int:
    """The most this program has held, in bytes; getrusage would count what its parent held when it was started."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found, "only Linux says it"
    return 1024 * int(found[1])


def few() -> dict[str, Any]:
    """Few rows, and unequal classes, ten and five times over; tested on dev and test together."""
    found = sst2_so_far()
    X, y = part(found, "train", "mean")
    tests = [part(found, name, "mean") for name in ("dev", "test")]
    Z, t = np.concatenate([p[0] for p in tests]), np.concatenate([p[1] for p in tests])
    sizes = {str(n): _repeated(X, y, Z, t, (n, n), 10, FEW) for n in (8, 32, 128)}
    return {"few": sizes, "unequal": _repeated(X, y, Z, t, (50, 950), 5, UNEQUAL), "examples": len(t)}


def _balanced_logistic(n: int) -> Any:
    model = logistic(n)
    return model.set_params(**{f"{model.steps[-1][0]}__class_weight": "balanced"})


FEW: dict[str, Callable[[int], Any]] = {
    TRAINED: logistic,
    "LDA": lambda _: AnalyticHead("lda"),
    "ridge": lambda _: AnalyticHead("ridge"),
    "Newton steps": lambda _: AnalyticHead("newton"),
    "class means": lambda _: AnalyticHead("ncm"),
}
UNEQUAL: dict[str, Callable[[int], Any]] = {
    **FEW,
    f"{TRAINED}, balanced": _balanced_logistic,
    "LDA, equal priors": lambda _: AnalyticHead("lda", prior="uniform"),
    "LDA, balanced": lambda _: AnalyticHead("lda", class_weight="balanced"),
    "ridge, balanced": lambda _: AnalyticHead("ridge", class_weight="balanced"),
    "Newton steps, balanced": lambda _: AnalyticHead("newton", class_weight="balanced"),
}


def _repeated(
    X: np.ndarray, y: np.ndarray, Z: np.ndarray, t: np.ndarray, sizes: tuple[int, ...], times: int,
    models: dict[str, Callable[[int], Any]],
) -> list[dict[str, Any]]:  # fmt: skip
    scores: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for seed in range(times):
        rng = np.random.default_rng(seed)
        rows = np.concatenate([rng.choice(np.flatnonzero(y == c), n, replace=False) for c, n in enumerate(sizes)])
        for name, make in models.items():
            predicted = timed_fit(make(len(rows)), X[rows], y[rows])[0].predict(Z)
            each = [float((predicted[t == c] == c).mean()) for c in range(len(sizes))]
            scores[name].append((float((predicted == t).mean()), float(np.mean(each))))
    return [
        {
            "head": name,
            "accuracy": a.mean(),
            "sd": a.std(ddof=1),
            "balanced": b.mean(),
            "balanced_sd": b.std(ddof=1),
        }
        for name, (a, b) in ((name, np.array(found).T) for name, found in scores.items())
    ]


def rehead() -> dict[str, Any]:
    """MiniLM fine-tuned on SST-2, half of its MACs kept, old head and fresh head on dev and test."""
    from dataclasses import replace

    from models import model_folder
    from recipes import shared_file
    from slimformer.calibrate.documents import read_documents
    from slimformer.compress import compress
    from slimformer.heads.attach import last_layer
    from slimformer.heads.classify import fresh_head, last_features

    rows = read_documents(shared_file("data", "sst2", "train_full.tsv"))
    calibration, labelled = rows[:3000], rows[3000:7000]
    made = compress(
        str(model_folder("minilm-sst2")), calibration, macs=0.5, tokens=16_384, seq_len=64, refine=False, timing=False
    )  # fmt: skip
    loaded, small = made.loaded, made.model
    layer: Any = small.get_submodule(last_layer(small))
    old = [layer.weight.detach().clone(), layer.bias.detach().clone()]
    tests: dict[str, Any] = {}
    for name, file in (("dev", "dev"), ("test", "test-labeled")):
        documents = read_documents(shared_file("data", "sst2", f"{file}.tsv"))
        y = torch.tensor([int(d.label) for d in documents])  # type: ignore[arg-type]
        dense = last_features(loaded, documents, 64)
        head: Any = loaded.model.get_submodule(last_layer(loaded.model))
        tests[name] = (last_features(replace(loaded, model=small), documents, 64), y, head(dense).argmax(1) == y)
    _, report = fresh_head(loaded, small, iter(labelled), seq_len=64)
    out: dict[str, Any] = {"macs": made.report.macs_kept, "calibration": len(calibration), "fresh": report, "tests": {}}
    for name, (X, y, dense_right) in tests.items():
        with torch.no_grad():
            before = torch.nn.functional.linear(X, *old).argmax(1) == y
            after = layer(X).argmax(1) == y
        out["tests"][name] = {
            "dense": float(dense_right.float().mean()), "examples": len(y),
            "old": vars(mean_interval(before.double().tolist())), "fresh": vars(mean_interval(after.double().tolist())),
            "p": mcnemar(before.numpy(), after.numpy()),
        }  # fmt: skip
    return out


def lm() -> dict[str, Any]:
    """stories15M, whose domain is TinyStories, for WikiText-2: valid to fit and choose, test to report."""
    from recipes import shared_file
    from slimformer.calibrate.documents import read_documents
    from slimformer.calibrate.text import packed_batches
    from slimformer.evaluate.perplexity import perplexity
    from slimformer.heads import adapt as lm_adapt
    from slimformer.models.load import load_model

    folder = shared_file("models", "stories15M", "config.json").parent
    loaded = load_model(folder)

    def windows(*where: str, tokens: int, skip: int = 0) -> Any:
        documents = read_documents(shared_file("data", *where))[skip:]
        return packed_batches(documents, loaded.processor, seq_len=256, tokens=tokens)

    valid = windows("wikitext2", "valid.txt", tokens=6_144)
    texts = {
        "WikiText-2 (domain)": windows("wikitext2", "test.txt", tokens=4_096),
        "TinyStories (source)": windows("tinystories_sample", "tinystories_sample.txt", tokens=4_096, skip=1000),
    }
    fit, select = (lm_adapt.states_of(loaded.model, part) for part in (valid[:2], valid[2:]))
    before = {name: perplexity(loaded.model, batches) for name, batches in texts.items()}
    rows = []
    for method in ADAPTATIONS:
        started = time.process_time()
        found = lm_adapt.adapt_head(loaded.model, fit, select, method)
        seconds = time.process_time() - started
        adapted, warning = lm_adapt.with_head(loaded.model, found.W)
        measured = lm_adapt.before_and_after(loaded.model, adapted, texts, before=before)
        rows.append({"method": method, "chosen": found.chosen, "cpu_seconds": seconds, "perplexity": measured})
    return {"model": "stories15M", "fit_tokens": len(fit.t), "select_tokens": len(select.t), "methods": rows,
            "warning": warning}  # fmt: skip


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "digits": digits, "pairs": pairs, "sst2": sst2, "memory": memory, "few": few, "rehead": rehead, "lm": lm,
}  # fmt: skip


def write(section: str, found: dict[str, Any]) -> None:
    """One file for each section."""
    machine = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    file = RESULTS / f"heads-{section}.json"
    file.write_text(json.dumps({"benchmark": f"heads-{section}", "machine": machine, **found}, indent=1) + "\n")


def main() -> None:
    """Run the sections named, or all."""
    parser = argparse.ArgumentParser(description="Heads in closed form beside trained ones.")
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help=f"{', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.inside:
        print(json.dumps(inside(options.inside)))
        return
    for section in options.sections or SECTIONS:
        started = time.perf_counter()
        write(section, SECTIONS[section]())
        print(f"{section}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Tables of the results of benchmarks/heads.py and benchmarks/matching.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables import markdown

TRAINED = "logistic regression"
Results = dict[str, Any]


def interval(found: dict[str, float]) -> str:
    return f"{found['value']:.3f} ({found['low']:.3f} … {found['high']:.3f})"


def classifiers(rows: list[dict[str, Any]], *, f1: bool = False) -> str:
    """Heads × test parts, with McNemar's p against the trained one."""
    parts = list(rows[0]["tests"])
    columns = [c for part in parts for c in (f"{part} accuracy", "p", *(["macro F1"] if f1 else []), "ECE")]
    body = []
    for row in rows:
        line = [row["head"] + (" (trained)" if row["head"] == TRAINED else "")]
        for part in parts:
            found = row["tests"][part]
            line += [interval(found), f"{found['p']:.2f}" if "p" in found else ""]
            line += [f"{found['macro_f1']:.3f}"] if f1 else []
            line += [f"{found['ece']:.3f}"]
        body.append([*line, f"{row['cpu_seconds']:.2f}"])
    return markdown(["head", *columns, "fit, CPU s"], body)


def sst2(results: Results, _report: str | None) -> str:
    """Heads on dev and test."""
    text = f"SST-2, frozen MiniLM, mean of the last states; fitted on {results['rows']:,} rows:"
    return f"{text}\n\n{classifiers(results['heads'])}"


def memory(results: Results, _report: str | None) -> str:
    """What a process takes at most, over one that only imports."""
    nothing = results["processes"]["nothing"]["peak_bytes"]
    names = {
        "quarter": "LDA, streamed from files",
        "stream": "LDA, streamed from files",
        "newton": "Newton steps, streamed from files",
        "logistic": f"{TRAINED}, rows in memory",
    }
    rows = [
        [
            names[key],
            f"{found['rows']:,}",
            f"{(found['peak_bytes'] - nothing) / 1e6:.0f} MB",
            f"{found['cpu_seconds']:.1f}",
        ]
        for key, found in results["processes"].items()
        if key in names
    ]
    head = ["fit", "rows", "peak memory beyond imports", "CPU s"]
    return f"SST-2 features, each fit in a process of its own:\n\n{markdown(head, rows)}"


def digits(results: Results, report: str | None) -> str:
    """One table for each set of features."""
    parts = {name: rows for name, rows in results["sets"].items() if report in (None, name)}
    return "\n\n".join(f"{name}:\n\n{classifiers(rows)}" for name, rows in parts.items())


def pairs(results: Results, _report: str | None) -> str:
    """A regression and a classifier of pairs."""
    rows = [[row["head"], interval(row), f"{row.get('cpu_seconds', 0):.2f}"] for row in results["stsb"]]
    text = f"STS-B dev, Spearman:\n\n{markdown(['head', 'Spearman', 'fit, CPU s'], rows)}"
    if "mrpc" in results:
        text += f"\n\nMRPC test, fitted on {results['mrpc_rows']:,} rows:\n\n{classifiers(results['mrpc'], f1=True)}"
    return text


def few(results: Results, _report: str | None) -> str:
    """Sizes × heads, then unequal classes."""
    sizes = list(results["few"])
    rows = [
        [row["head"], *(f"{results['few'][n][i]['accuracy']:.3f} ± {results['few'][n][i]['sd']:.3f}" for n in sizes)]
        for i, row in enumerate(results["few"][sizes[0]])
    ]
    first = markdown(["head", *(f"{n} rows a class" for n in sizes)], rows)
    rows = [
        [row["head"], f"{row['accuracy']:.3f}", f"{row['balanced']:.3f} ± {row['balanced_sd']:.3f}"]
        for row in results["unequal"]
    ]
    second = markdown(["head, 50 negative and 950 positive rows", "accuracy", "balanced accuracy"], rows)
    return (
        f"SST-2, {results['examples']:,} test rows; mean ± deviation over draws of the training rows:\n\n"
        f"{first}\n\n{second}"
    )


def rehead(results: Results, _report: str | None) -> str:
    """Old and fresh head of the cut model."""
    rows = [
        [name, f"{found['dense']:.3f}", interval(found["old"]), interval(found["fresh"]), f"{found['p']:.3f}"]
        for name, found in results["tests"].items()
    ]
    text = (
        f"MiniLM tuned on SST-2 at {results['macs']:.2f} of its block MACs; fresh head: {results['fresh']['kind']} "
        f"on {results['fresh']['rows']:,} rows:"
    )
    return f"{text}\n\n{markdown(['SST-2', 'dense', 'cut, old head', 'cut, fresh head', 'p'], rows)}"


def lm(results: Results, _report: str | None) -> str:
    """Heads × texts."""
    texts = list(results["methods"][0]["perplexity"])
    rows = [["pretrained head", *(f"{results['methods'][0]['perplexity'][t]['before']:.1f}" for t in texts), "", ""]]
    for row in results["methods"]:
        first = row["perplexity"][texts[0]]
        gap = f"{first['nats']:+.3f} ({first['low']:+.3f} … {first['high']:+.3f})"
        rows.append(
            [row["method"], *(f"{row['perplexity'][t]['after']:.1f}" for t in texts), gap, f"{row['cpu_seconds']:.0f}"]
        )
    head = ["head", *(f"perplexity, {t}" for t in texts), "domain, nats per token", "CPU s"]
    tokens = f"{results['fit_tokens']:,} tokens to fit, {results['select_tokens']:,} to choose"
    return f"{results['model']}, {tokens}:\n\n{markdown(head, rows)}"


def matching(results: Results, report: str | None) -> str:
    """Methods × ways, one table for each pair of models."""
    parts = []
    for name, found in results[report or "sentences"].items():
        rows = []
        for row in found["methods"]:
            ways = [row["cosine"][way] for way in ("forward", "backward")]
            hubs = [row["csls"][way]["R@1"] for way in ("forward", "backward")]
            numbers = [f"{way[f'R@{k}']:.3f}" for way in ways for k in (1, 5, 10)]
            rows.append([row["method"], *numbers, " / ".join(f"{value:.3f}" for value in hubs)])
        head = ["method", *(f"{way} R@{k}" for way in ("→", "←") for k in (1, 5, 10)), "R@1 without hubs → / ←"]
        chance = found["chance"]["R@1"]
        text = f"{name}: {found['pairs']:,} pairs to fit, {found['held_out']:,} held out (chance R@1 {chance:.4f})"
        parts.append(f"{text}\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


HEADS: dict[str, Callable[[Results, str | None], str]] = {
    "heads-sst2": sst2, "heads-memory": memory, "heads-digits": digits, "heads-pairs": pairs, "heads-few": few,
    "heads-rehead": rehead, "heads-lm": lm, "heads-match": matching,
}  # fmt: skip

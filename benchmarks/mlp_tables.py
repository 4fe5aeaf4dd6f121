"""Tables of feed-forward parts replaced, one for each model."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

WAYS = {
    "skip": "nothing (skip)",
    "low-rank": "linear, rank D/4",
    "least-squares": "linear, least squares",
    "unit": "linear, least squares to unit targets",
    "scales": "linear, A v ≈ λu, λ by the eigenvector",
    "gauge": "linear, A v ≈ λu, λ by the linear solve",
    "cosine": "linear, A v ≈ λu, greatest mean cosine",
    "fourier": "linear + random Fourier features",
    "arc-cosine": "linear + arc-cosine features",
    "gegenbauer": "linear + Gegenbauer features, degree 2",
    "harmonics": "linear + harmonics on 8 principal directions",
    "elimination": "neurons by elimination",
    "bypass": "neurons by elimination + bypass of rank D/4 (without a gate D/8)",
}
PRE_NORM = {"unit": "linear, tokens weighted by 1/‖stream‖²"}
DIRECTIONS_ONLY = {
    "unit",
    "scales",
    "gauge",
    "cosine",
}  # post-norm: fitted to a direction, so R² of the output says nothing


def mlp(results: dict[str, Any], model: str | None) -> str:
    """Methods × multiplications, for one model or for all of them."""
    if model is not None and model not in results["models"]:
        raise NothingToRender(f"there is no model {model!r}; choose from {', '.join(results['models'])}")
    return "\n\n".join(_one(name, found) for name, found in results["models"].items() if model in (None, name))


def _one(name: str, found: dict[str, Any]) -> str:
    settings, post_norm = found["settings"], "cosine" not in found["not_offered"]
    whole = found["dense_budget"]
    ends = [which for which in ("some", "all") if which in found["rows"][0]]
    n, every = found["n_blocks"], found["every"]
    header = {
        "some": f"{len(range(1, n, every))} of {n} blocks",
        "all": f"all {n}",
    }
    rows = []
    for row in sorted(found["rows"], key=lambda row: row["budget"]):
        way = WAYS[row["method"]] if post_norm else PRE_NORM.get(row["method"], WAYS[row["method"]])
        r2 = "–" if post_norm and row["method"] in DIRECTIONS_ONLY else f"{row['r2']:.3f}"
        best = (_is_best(row, found["rows"], which, found["metric"]) for which in ends)
        cells = [
            f"**{_end(found, row[which])}**" if top else _end(found, row[which])
            for which, top in zip(ends, best, strict=True)
        ]
        rows.append([f"{100 * row['budget'] / whole:.4g} %", way, r2, f"{row['cosine']:.3f}", *cells])
    what = "the normed sum they lead to" if post_norm else "it"
    examples, tokens = settings["examples"][found["report"]], settings["tokens"]["fit"]
    said = (
        f"{name}: R² of what feed-forward parts write and cosine of {what}, means over blocks; then {_metric(found)}, "
        f"parts of some blocks replaced (dense {_end(found, found['dense'])}; {found['report']}, {examples:,} held-out "
        f"examples, {tokens:,} calibration tokens; bold: best for its multiplications)"
    )
    refused = {}
    for method, reason in found["not_offered"].items():
        refused.setdefault(reason, []).append(WAYS[method].partition(", ")[2])
    notes = [f"Not offered: {'; '.join(ways)}. Reason: {reason}." for reason, ways in refused.items()]
    columns = ["MACs of the part", "in its place", "R²", "cosine", *(header[which] for which in ends)]
    return "\n\n".join([said, markdown(columns, rows), *notes])


def _is_best(row: dict[str, Any], rows: list[dict[str, Any]], which: str, metric: str) -> bool:
    beside = [other[which] for other in rows if other["budget"] == row["budget"]]
    return len(beside) > 1 and row[which] == (min if metric == "perplexity" else max)(beside)


def _metric(found: dict[str, Any]) -> str:
    return "perplexity" if found["metric"] == "perplexity" else "cosine of sentence embeddings to the dense model's"


def _end(found: dict[str, Any], value: float) -> str:
    return f"{value:.4g}" if found["metric"] == "perplexity" else f"{value:.3f}"

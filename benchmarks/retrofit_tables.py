"""Tables of attention over fewer keys in trained models."""

from __future__ import annotations

from statistics import mean
from typing import Any

from tables import NothingToRender, markdown

WAYS = {
    "jl": "random projection (the theorem)",
    "mean": "mean pooling, log-mass",
    "least-squares": "mean pooling, values by least squares",
    "learned": "projections trained, weights frozen",
    "window": "first 4 tokens and window only",
    "plain": "clusters by distance of keys, log-mass",
    "no-mass": "clusters by scores, no mass",
    "cluster": "**clusters by scores, log-mass**",
    "second": "clusters by scores, log-mass, second order",
    "oracle": "best rank k of each P (oracle)",
}


def retrofit(results: dict[str, Any], report: str | None) -> str:
    """One length, the row spaces, the identity, or what was not run."""
    if report in PARTS:
        return PARTS[report](results)
    dense = next((each for each in results["dense"] if str(each["n"]) == report), None)
    if dense is None:
        raise NothingToRender(f"there is no table {report!r} of the retrofit")
    rows = [_row(each, dense) for each in results["rows"] if each["n"] == dense["n"]]
    quality = "embedding cosine (worst)" if "cosine" in results["rows"][0] else "perplexity"
    header = ["keys", "k", "error of attention, mean (worst layer)", quality, "attention, × faster", "all, × faster"]
    return f"{_caption(results, dense)}\n\n{markdown(header, rows)}"


def _caption(results: dict[str, Any], dense: dict[str, Any]) -> str:
    settings, n = results["settings"], dense["n"]
    share = dense["attention_seconds"] / dense["total_seconds"]
    level = f"dense perplexity {dense['perplexity']:.2f}; " if "perplexity" in dense else ""
    window = f", window {settings['window']}" if settings["window"] else ""
    return (
        f"{settings['model']}, n = {n:,}{window}, every layer, {settings['tokens'] // n} texts of WikiText-2 test "
        f"({level}attention takes {100 * share:.0f} % of the time, so no method can gain more than "
        f"{1 / (1 - share):.2f} ×):"
    )


def _row(each: dict[str, Any], dense: dict[str, Any]) -> list[str]:
    quality = f"{each['cosine']:.4f} ({each['worst_cosine']:.4f})" if "cosine" in each else f"{each['perplexity']:.2f}"
    faster = [f"{dense[key] / each[key]:.2f}" for key in ("attention_seconds", "total_seconds")]
    times = ["–", "–"] if each["method"] in ("oracle", "window") else faster
    k = "–" if each["method"] == "window" else str(each["k"])
    errors = f"{mean(each['errors']):.3f} ({max(each['errors']):.3f})"
    return [WAYS[each["method"]], k, errors, quality, *times]


def _spaces(results: dict[str, Any]) -> str:
    found = results["spaces"]
    header = ["layer", "k, σ²", "worst head", "k, Σσ", "k, σ², noise", "k, shared", "own keep", "shared keep"]
    rows = []
    for each in found["layers"]:
        whole = [f"{mean(each[name]):.0f}" for name in ("k_sum", "k_null", "k_shared")]
        parts = [f"{mean(each[name]):.3f}" for name in ("own", "shared")]
        rows.append(
            [str(each["block"]), f"{mean(each['k_squares']):.0f}", f"{max(each['k_squares']):.0f}", *whole, *parts]
        )
    return (
        f"{results['settings']['model']}, {found['sequences']} texts of {found['n']} tokens, "
        f"{100 * found['share']:.0f} % of the energy, means over heads:\n\n{markdown(header, rows)}"
    )


def _identity(results: dict[str, Any]) -> str:
    rows = [
        [f"{each['n']:,}", str(each["k"]), f"{each['error']:.2f}", f"{(each['n'] / each['k']) ** 0.5:.2f}"]
        for each in results["identity"]
    ]
    return markdown(["n", "k", "relative error of RᵀR on P = I", "√(n/k)"], rows)


def _not_run(results: dict[str, Any]) -> str:
    return markdown(["not run", "why"], [[name, why] for name, why in results["not_run"].items()])


def _alone(results: dict[str, Any]) -> str:
    rows = [
        [f"{each['n']:,}", f"{1000 * each['exact_seconds']:.0f}", f"{1000 * each['seconds']:.0f}",
         f"{each['exact_seconds'] / each['seconds']:.2f}"]
        for each in results["alone"]
    ]  # fmt: skip
    first = results["alone"][0]
    caption = f"One attention of {results['settings']['model']}, {first['k']} groups and a window of {first['window']}"
    header = ["n", "exact (SDPA), ms", "groups, ms", "× faster"]
    return f"{caption}, CPU time of one thread, best of 3:\n\n{markdown(header, rows)}"


PARTS = {"alone": _alone, "spaces": _spaces, "identity": _identity, "not-run": _not_run}

"""Tables of benchmarks/results/spectra.json: captions, headers and rows; `render.py` makes Markdown of them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

Table = tuple[str, list[str], list[list[str]]]
Models = dict[str, dict[str, Any]]


def decay(models: Models) -> Table:
    """Which block needs the smallest share of its rank, and how the share goes with depth."""
    spectra = list(next(iter(models.values()))["decay"])
    rows = []
    for name in spectra:
        cells = []
        for model in models.values():
            found = model["decay"][name]
            cells.append(
                f"{found['first']:.2f} / {found['mean']:.2f} / {found['last']:.2f} · {found['least']} · "
                f"{found['with_depth']:+.2f}"
            )
        rows.append([name, *cells])
    caption = (
        "Share of the rank that is needed (weights: 95 % of Σσ²; activations: 99 % of the variance; attention: "
        "effective rank over n): first block / mean / last block · block with the least · rank correlation with depth"
    )
    return caption, ["spectrum", *_titled(models)], rows


def pruned(models: Models) -> Table:
    """Harm of keeping a share of the directions."""
    shares = [cell["kept"] for cell in next(iter(models.values()))["pruned"]]
    rows = []
    for title, model in zip(_titled(models), models.values(), strict=True):
        unit = "cosine" if "cosine" in model["pruned"][0] else "perplexity"
        values = [cell.get("cosine", cell.get("ppl")) for cell in model["pruned"]]
        rows.append([f"{title}, {unit}", *(f"{value:.3g}" for value in values)])
    header = ["directions kept", *("all" if share == 1 else f"{100 * share:.0f} %" for share in shares)]
    caption = (
        "Only the first singular directions of what every head and every neuron hands on are kept, in all blocks at "
        "once; found on one part of the text, measured on another"
    )
    return caption, header, rows


def needed(models: Models) -> Table:
    """How much of the spectrum of activations is needed: least and most over blocks."""
    rows = []
    for stream in next(iter(models.values()))["activations"][0]:
        for energy in ("90", "99"):
            cells = []
            for model in models.values():
                shares = [block[stream][f"rank{energy}"] for block in model["activations"]]
                cells.append(f"{min(shares):.2f} … {max(shares):.2f}")
            rows.append([f"{stream}, {energy} %", *cells])
    caption = (
        "Share of the directions that hold 90 % and 99 % of the variance of activations, least and most over blocks"
    )
    return caption, ["stream", *_titled(models)], rows


def size(models: Models) -> Table:
    """Means over blocks, smallest model first."""
    rows = []
    for title, model in sorted(zip(_titled(models), models.values(), strict=True), key=lambda pair: pair[1]["params"]):
        streams = [fmean(block[name]["rank99"] for block in model["activations"]) for name in ("context", "neurons")]
        keep = [fmean(block[name] for block in model["weights"]) for name in ("keep", "keep_random")]
        qk = fmean(block["groups"]["qk"]["rank95"] for block in model["weights"])
        rank = fmean(fmean(block["effective_rank"]) for block in model["attention"]["blocks"])
        cells = [*(f"{x:.2f}" for x in streams), f"{qk:.2f}", f"{keep[0]:.2f} ({keep[1]:.2f})", f"{rank:.1f}"]
        rows.append(
            [title, f"{model['params'] / 1e6:.1f} M", str(model["hidden"]), model["data"].split("/")[0], *cells]
        )
    header = [
        "model", "parameters", "width", "text", "context, 99 %", "neurons, 99 %", "W_qk, 95 %",
        "weights to keep (random)", "rank of attention",
    ]  # fmt: skip
    return "Shares of the rank that are needed, means over blocks", header, rows


def attention(model: dict[str, Any]) -> Table:
    """Energy of the first quarter of the singular values, block by block."""
    rows = []
    for i, block in enumerate(model["attention"]["blocks"]):
        cells = []
        for key in ("energy_sum", "energy_squares"):
            heads = block[key]
            nulls = [block["nulls"][name][key] for name in ("iid", "low_rank", "shuffled")]
            cells += [f"{fmean(heads):.2f}", f"{min(heads):.2f} … {max(heads):.2f}", *(f"{x:.2f}" for x in nulls)]
        rows.append([str(i), *cells, f"{fmean(block['shared']):.2f}", f"{fmean(block['effective_rank']):.1f}"])
    n, count = model["attention"]["length"], model["attention"]["sequences"]
    header = [
        "block",
        *(f"{e}{part}" for e in ("Σσ", "Σσ²") for part in ("", ", heads", ", iid", ", rank-d", ", shuffled")),
    ]
    caption = (
        f"{model['model']}, {count} sequences of {n} tokens of {model['data']}: energy of the first {n // 4} σ of n"
    )
    return caption, [*header, "shared Σσ²", "effective rank"], rows


def symmetry(models: Models) -> Table:
    """Asymmetry of heads, and errors of the nearest symmetric forms."""
    rows = []
    for title, model in zip(_titled(models), models.values(), strict=True):
        parts = [[x for block in model["weights"] for x in block["symmetry"][name]] for name in _FORMS]
        parts.append([x for block in model["symmetry_on_data"] for x in block])
        rows.append([title, *(f"{fmean(part):.2f} ({min(part):.2f} … {max(part):.2f})" for part in parts)])
    header = [
        "model",
        "nearest symmetric (= asymmetry)",
        "of rank d",
        "tied, W_q = W_k",
        "nearest symmetric, scores on data",
    ]
    return "Relative error of symmetric forms of W_qk: mean over all heads (least … most)", header, rows


_FORMS = ("asymmetry", "symmetric", "tied")
TABLES: dict[str, Callable[[Models], Table]] = {
    "decay": decay, "pruned": pruned, "needed": needed, "size": size, "symmetry": symmetry,
}  # fmt: skip


def spectra_table(results: dict[str, Any], report: str | None) -> Table | None:
    """The table of that name; `attention-<model>` for one model. None when there is no such table."""
    models = results["models"]
    if report in TABLES:
        return TABLES[report](models)
    name = (report or "").removeprefix("attention-")
    return attention(models[name]) if name in models else None


def _titled(models: Models) -> list[str]:
    return [model["model"].removeprefix("demo:") for model in models.values()]

"""Figures of a model's portrait: PNG files from the same numbers the JSON has.

Blocks are shades of one map that grows in lightness (cividis), categories are the colours of Okabe & Ito, baselines are
grey and dashed: all can be told apart without telling red from green, and on paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimformer.errors import SlimformerError
from slimformer.report.canvas import (
    COLOURS,
    OF_SHARES,
    Facts,
    Shades,
    along,
    block_bar,
    canvas,
    heat,
    label_pair,
    panels,
    short,
    spectra_pair,
    stretched,
    whole_blocks,
)
from slimformer.report.figures_data import data_figures

DPI = 130
MATRICES = ("query", "key", "value", "out", "gate", "up", "down")
GROUPS = ("qk", "vo", "gate", "up", "down")
TITLES = {"qk": "$W_{qk}$, heads", "vo": "$W_{vo}$, heads", "gate": "gate", "up": "up", "down": "down"}


def require_plotting() -> None:
    """Say in one line what is missing, before anything is computed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SlimformerError("figures need matplotlib; run: pip install 'matplotlib>=3.8'") from None


def draw(portrait: Facts, folder: Path) -> list[Path]:
    """Every figure the numbers allow, as PNG files in `folder`."""
    files = []
    for name, drawing in figures(portrait):
        files.append(folder / f"{name}.png")
        drawing.savefig(files[-1], dpi=DPI)
    return files


def figures(portrait: Facts) -> Iterator[tuple[str, Any]]:
    """Names and figures, one after the other, so that one at a time is in memory."""
    drawings: dict[str, Callable[[Facts], Any]] = {
        "weights-spectra": weight_spectra,
        "weights-magnitudes": weight_magnitudes,
        "weights-qk-maps": qk_maps,
        "weights-asymmetry": asymmetry,
        "weights-compressibility": keep_estimates,
    }
    for name, make in drawings.items():
        yield name, make(portrait)
    yield from data_figures(portrait)


def weight_spectra(portrait: Facts) -> Any:
    """Singular values of every product and matrix, linear above, logarithmic below; dashed what random weights have."""
    blocks = portrait["weights"]
    names = [name for name in GROUPS if any(len(b["values"].get(name) or ()) for b in blocks)]
    drawing = canvas(2.6 * len(names) + 0.8, 5.2, f"{short(portrait['model'])}: singular values of the weights")
    axes = drawing.subplots(2, len(names), squeeze=False, sharex=True)
    for column, name in enumerate(names):
        curves = [(b["block"], _relative(b["values"][name])) for b in blocks if len(b["values"].get(name) or ())]
        spectra_pair(axes[:, column], curves, portrait["blocks"])
        random = _random(portrait, name, len(curves[0][1]))
        for ax in axes[:, column]:
            ax.plot(along(random), random, "--", color="0.35", linewidth=1.2, label="random weights")
        axes[0, column].set_title(TITLES[name], fontsize=10)
    axes[0, 0].legend(frameon=False, fontsize=8)
    label_pair(axes, "σ / σ₁", "index / rank")
    block_bar(drawing, axes, portrait["blocks"])
    return drawing


def weight_magnitudes(portrait: Facts) -> Any:
    """Root mean square of every matrix by block, and norms of the products of every head."""
    blocks = portrait["weights"]
    names = [name for name in MATRICES if name in blocks[0]["rms"]]
    drawing = canvas(
        11, 0.6 + max(2.6, 0.17 * len(blocks) + 1.2), f"{short(portrait['model'])}: magnitude of the weights"
    )
    left, middle, right = drawing.subplots(1, 3)
    heat(left, [[b["rms"][name] for name in names] for b in blocks], "root mean square", columns=names)
    heat(middle, [b["norms"]["qk"] for b in blocks], "‖$W_{qk}$‖ of heads", xlabel="head")
    heat(right, [b["norms"]["vo"] for b in blocks], "‖$W_{vo}$‖ of heads", xlabel="head")
    left.set_ylabel("block")
    return drawing


def qk_maps(portrait: Facts) -> Any:
    """|W_qᵀ W_k|, mean over heads, block by block: rows are coordinates of the query's stream, columns of the key's."""
    maps = [(b["block"], np.array(b["qk_map"])) for b in portrait["weights"] if b.get("qk_map")]
    title = f"{short(portrait['model'])}: mean over heads of |$W_{{qk}}$|"
    pictures = [(f"block {i}", stretched(m)) for i, m in maps]
    return panels(pictures, title, top=1.0, label="1st to 99th percentile")


def asymmetry(portrait: Facts) -> Any:
    """Of every head: relative error of the nearest symmetric form, and of the nearest with W_q = W_k."""
    from matplotlib.colors import TwoSlopeNorm

    blocks = portrait["weights"]
    height = 0.6 + max(2.6, 0.17 * len(blocks) + 1.2)
    drawing = canvas(8.5, height, f"{short(portrait['model'])}: how symmetric are the scores?")
    left, right = drawing.subplots(1, 2)
    shades = Shades("PuOr", {"norm": TwoSlopeNorm(0.5**0.5, 0.0, 1.0)}, (0, 0.25, 0.5, 0.71, 0.85, 1))
    rows = [b["symmetry"]["asymmetry"] for b in blocks]
    heat(left, rows, "‖W − Wᵀ‖ / 2‖W‖ (0.71: random)", xlabel="head", shades=shades)
    heat(right, [b["symmetry"]["tied"] for b in blocks], "error with $W_q = W_k$", xlabel="head", shades=OF_SHARES)
    left.set_ylabel("block")
    return drawing


def keep_estimates(portrait: Facts) -> Any:
    """Rank that holds 95 % of Σσ² over full rank, by block; what random weights need is dashed."""
    blocks = portrait["weights"]
    drawing = canvas(7.5, 4, f"{short(portrait['model'])}: rank for 95 % of Σσ², from weights alone")
    ax = drawing.subplots()
    for colour, name in zip(COLOURS, GROUPS, strict=False):
        with_it = [b for b in blocks if name in b["groups"]]
        if with_it:
            at = [b["block"] for b in with_it]
            ax.plot(at, [b["groups"][name]["rank95"] for b in with_it], "o-", color=colour, markersize=3.5,
                    label=TITLES[name])  # fmt: skip
    for label, style, group in (("random heads", "--", "qk"), ("random matrices", ":", "down")):
        width = next((int(b["groups"][group]["width"]) for b in blocks if group in b["groups"]), 0)
        if width:
            values = _random(portrait, group, width)
            needed = (np.searchsorted(np.cumsum(values**2) / np.sum(values**2), 0.95) + 1) / len(values)
            ax.axhline(needed, color="0.35", linestyle=style, linewidth=1.2, label=label)
    ax.set(xlabel="block", ylabel="share of the rank", ylim=(0, 1))
    whole_blocks(ax, portrait["blocks"])
    drawing.legend(frameon=False, fontsize=8, loc="outside right center")
    return drawing


# --- parts of figures -------------------------------------------------------------------------------------


def _relative(values: Sequence[Any]) -> np.ndarray:
    """σ / σ₁; of several heads the mean."""
    rows = np.atleast_2d(np.array(values, dtype=float))
    mean: np.ndarray = (rows / np.maximum(rows[:, :1], 1e-300)).mean(0)
    return mean


def _random(portrait: Facts, name: str, rank: int) -> np.ndarray:
    from slimformer.inspect.weights import gaussian_matrix, gaussian_product

    if name in ("qk", "vo"):
        values = gaussian_product(rank, portrait["hidden"])
    else:
        values = gaussian_matrix(portrait["sites"][1]["units"], portrait["hidden"])
    relative: np.ndarray = (values / values[0]).numpy()
    return relative

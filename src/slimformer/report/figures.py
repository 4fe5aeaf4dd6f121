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

DPI = 130
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MAP = "cividis"
MATRICES = ("query", "key", "value", "out", "gate", "up", "down")
GROUPS = ("qk", "vo", "gate", "up", "down")
TITLES = {"qk": "$W_{qk}$, heads", "vo": "$W_{vo}$, heads", "gate": "gate", "up": "up", "down": "down"}
NULLS = {"iid": ("iid logits", ":"), "low_rank": ("rank-d logits", "--"), "shuffled": ("shuffled rows", "-.")}
ENERGIES = {"sum": "Σσ", "squares": "Σσ²"}
Found = dict[str, Any]


def require_plotting() -> None:
    """Say in one line what is missing, before anything is computed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SlimformerError("figures need matplotlib; run: pip install 'matplotlib>=3.8'") from None


def draw(found: Found, folder: Path) -> list[Path]:
    """Every figure the numbers allow, as PNG files in `folder`."""
    files = []
    for name, drawing in figures(found):
        files.append(folder / f"{name}.png")
        drawing.savefig(files[-1], dpi=DPI)
    return files


def figures(found: Found) -> Iterator[tuple[str, Any]]:
    """Names and figures, one after the other, so that one at a time is in memory."""
    from slimformer.report.figures_data import data_figures

    made: dict[str, Callable[[Found], Any]] = {
        "weights-spectra": weight_spectra,
        "weights-magnitudes": weight_magnitudes,
        "weights-qk-maps": qk_maps,
        "weights-asymmetry": asymmetry,
        "weights-compressibility": keep_estimates,
    }
    for name, make in made.items():
        yield name, make(found)
    yield from data_figures(found)


def weight_spectra(found: Found) -> Any:
    """Singular values of every product and matrix, linear above, logarithmic below; dashed what random weights have."""
    blocks = found["weights"]
    names = [name for name in GROUPS if any(len(b["values"].get(name) or ()) for b in blocks)]
    drawing = canvas(2.6 * len(names) + 0.8, 5.2, f"{short(found['model'])}: singular values of the weights")
    axes = drawing.subplots(2, len(names), squeeze=False, sharex=True)
    for column, name in enumerate(names):
        curves = [(b["block"], _relative(b["values"][name])) for b in blocks if len(b["values"].get(name) or ())]
        spectra_pair(axes[:, column], curves, found["blocks"])
        random = _random(found, name, len(curves[0][1]))
        for ax in axes[:, column]:
            ax.plot(_along(random), random, "--", color="0.35", linewidth=1.2, label="random weights")
        axes[0, column].set_title(TITLES[name], fontsize=10)
    axes[0, 0].legend(frameon=False, fontsize=8)
    label_pair(axes, "σ / σ₁", "index / rank")
    block_bar(drawing, axes, found["blocks"])
    return drawing


def weight_magnitudes(found: Found) -> Any:
    """Root mean square of every matrix by block, and norms of the products of every head."""
    blocks = found["weights"]
    names = [name for name in MATRICES if name in blocks[0]["rms"]]
    drawing = canvas(11, 0.6 + max(2.6, 0.17 * len(blocks) + 1.2), f"{short(found['model'])}: magnitude of the weights")
    left, middle, right = drawing.subplots(1, 3)
    heat(left, [[b["rms"][name] for name in names] for b in blocks], "root mean square", columns=names)
    heat(middle, [b["norms"]["qk"] for b in blocks], "‖$W_{qk}$‖ of heads", xlabel="head")
    heat(right, [b["norms"]["vo"] for b in blocks], "‖$W_{vo}$‖ of heads", xlabel="head")
    left.set_ylabel("block")
    return drawing


def qk_maps(found: Found) -> Any:
    """|W_qᵀ W_k|, mean over heads, block by block: rows are coordinates of the query's stream, columns of the key's."""
    maps = [(b["block"], np.array(b["qk_map"])) for b in found["weights"] if b.get("qk_map")]
    title = f"{short(found['model'])}: mean over heads of |$W_{{qk}}$|"
    pictures = [(f"block {i}", _stretched(m)) for i, m in maps]
    return panels(pictures, title, top=1.0, label="1st to 99th percentile")


def asymmetry(found: Found) -> Any:
    """Of every head: relative error of the nearest symmetric form, and of the nearest with W_q = W_k."""
    from matplotlib.colors import TwoSlopeNorm

    blocks = found["weights"]
    height = 0.6 + max(2.6, 0.17 * len(blocks) + 1.2)
    drawing = canvas(8.5, height, f"{short(found['model'])}: how symmetric are the scores?")
    left, right = drawing.subplots(1, 2)
    norm = TwoSlopeNorm(0.5**0.5, 0.0, 1.0)
    rows = [b["symmetry"]["asymmetry"] for b in blocks]
    heat(left, rows, "‖W − Wᵀ‖ / 2‖W‖ (0.71: random)", xlabel="head", map="PuOr", norm=norm)
    heat(right, [b["symmetry"]["tied"] for b in blocks], "error with $W_q = W_k$", xlabel="head", limits=(0, 1))
    left.set_ylabel("block")
    return drawing


def keep_estimates(found: Found) -> Any:
    """Rank that holds 95 % of Σσ² over full rank, by block; what random weights need is dashed."""
    blocks = found["weights"]
    drawing = canvas(7.5, 4, f"{short(found['model'])}: rank for 95 % of Σσ², from weights alone")
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
            values = _random(found, group, width)
            needed = (np.searchsorted(np.cumsum(values**2) / np.sum(values**2), 0.95) + 1) / len(values)
            ax.axhline(needed, color="0.35", linestyle=style, linewidth=1.2, label=label)
    ax.set(xlabel="block", ylabel="share of the rank", ylim=(0, 1))
    whole_blocks(ax, found["blocks"])
    drawing.legend(frameon=False, fontsize=8, loc="outside right center")
    return drawing


# --- parts of figures -------------------------------------------------------------------------------------


def canvas(width: float, height: float, title: str) -> Any:
    """An empty figure that lays itself out."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height), layout="constrained")
    drawing.suptitle(title, fontsize=11)
    return drawing


def shade(block: int, count: int) -> Any:
    """The colour of a block: dark first, light last, without the lightest."""
    from matplotlib import colormaps

    return colormaps[MAP](0.92 * block / max(1, count - 1))


def spectra_pair(axes: Any, curves: Sequence[tuple[int, np.ndarray]], count: int) -> None:
    """The same curves on a linear and on a logarithmic axis."""
    for ax, scale in zip(axes, ("linear", "log"), strict=True):
        for block, values in curves:
            ax.plot(_along(values), np.where(values > 1e-6, values, np.nan), color=shade(block, count), linewidth=1)
        ax.set_yscale(scale)


def label_pair(axes: Any, ylabel: str, xlabel: str) -> None:
    """Labels at the outer edge only, and the same limits for all of a row."""
    least = min((float(ax.dataLim.y0) for ax in axes[-1] if np.isfinite(ax.dataLim.y0)), default=0.1)
    for ax in axes[0]:
        ax.set_ylim(0, 1.05)
    for ax in axes[-1]:
        ax.set_ylim(max(1e-4, 10 ** np.floor(np.log10(max(least, 1e-12)))), 1.4)
    for row, ax in enumerate(axes[:, 0]):
        ax.set_ylabel(f"{ylabel} ({('linear', 'log')[row % 2]})")
    for ax in axes[-1]:
        ax.set_xlabel(xlabel)
    for ax in axes[:, 1:].flat:
        ax.tick_params(labelleft=False)


def block_bar(drawing: Any, axes: Any, count: int) -> None:
    """The bar that says which shade is which block."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colours = ListedColormap([shade(i, count) for i in range(count)])
    bar = drawing.colorbar(ScalarMappable(Normalize(-0.5, count - 0.5), colours), ax=axes, fraction=0.03, pad=0.01)
    bar.set_ticks(sorted({round(x) for x in np.linspace(0, count - 1, min(count, 7))}))
    bar.set_label("block")


def heat(
    ax: Any, rows: Sequence[Sequence[float]], title: str, *, columns: Sequence[str] = (), xlabel: str = "",
    map: str = MAP, limits: tuple[float, float] | None = None, norm: Any = None,
) -> None:  # fmt: skip
    """Blocks from top to bottom; where a block has fewer heads there is nothing."""
    wide = max((len(row) for row in rows), default=0) or 1
    grid = np.array([[*row, *([np.nan] * (wide - len(row)))] for row in rows], dtype=float)
    how = {"norm": norm} if norm is not None else {"vmin": limits[0], "vmax": limits[1]} if limits else {}
    image = ax.imshow(grid, cmap=map, aspect="auto", interpolation="nearest", **how)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.06, pad=0.02)
    if norm is not None:
        bar.set_ticks([0, 0.25, 0.5, 0.71, 0.85, 1])
    ax.set_title(title, fontsize=10)
    ax.set_yticks(_ticks(len(rows), 8))
    ax.set_xticks(range(wide) if columns else _ticks(wide, 8))
    if columns:
        ax.set_xticklabels(columns, rotation=45, ha="right")
    ax.set_xlabel(xlabel)


def panels(pictures: Sequence[tuple[str, np.ndarray]], title: str, *, top: float | None = None, label: str = "") -> Any:
    """One square picture for each block, six to a row, on one scale of colours."""
    per_row = min(6, max(1, len(pictures)))
    lines = -(-len(pictures) // per_row)
    drawing = canvas(1.75 * per_row + 0.9, 1.9 * lines + 0.7, title)
    axes = drawing.subplots(lines, per_row, squeeze=False)
    most = top or max((float(picture.max()) for _, picture in pictures), default=1.0)
    image = None
    for ax, (name, picture) in zip(axes.flat, pictures, strict=False):
        image = ax.imshow(picture, cmap=MAP, vmin=0, vmax=most, interpolation="nearest")
        ax.set_title(name, fontsize=9)
        ax.set(xticks=[], yticks=[])
    for ax in axes.flat[len(pictures) :]:
        ax.axis("off")
    if image is not None:
        drawing.colorbar(image, ax=axes, fraction=0.025, pad=0.01, label=label)
    return drawing


def whole_blocks(ax: Any, count: int) -> None:
    """Ticks at whole blocks."""
    ax.set_xticks(_ticks(count, 10))


def short(name: str, most: int = 40) -> str:
    """The last part of a path, so that it fits into a title, with nothing in it that would be read as a formula."""
    last = name.rstrip("/").rpartition("/")[2] or name
    return (last if len(last) <= most else f"…{last[1 - most :]}").replace("$", r"\$")


def _stretched(picture: np.ndarray) -> np.ndarray:
    """From 0 at the 1st to 1 at the 99th percentile: structure is a few per cent of the mean."""
    low, high = np.quantile(picture, (0.01, 0.99))
    stretched: np.ndarray = np.clip((picture - low) / max(float(high - low), 1e-30), 0, 1)
    return stretched


def _ticks(count: int, most: int) -> list[int]:
    step = max(1, -(-count // most))
    return list(range(0, count, step))


def _along(values: np.ndarray) -> np.ndarray:
    return np.arange(1, len(values) + 1) / max(1, len(values))


def _relative(values: Sequence[Any]) -> np.ndarray:
    """σ / σ₁; of several heads the mean."""
    rows = np.atleast_2d(np.array(values, dtype=float))
    mean: np.ndarray = (rows / np.maximum(rows[:, :1], 1e-300)).mean(0)
    return mean


def _random(found: Found, name: str, rank: int) -> np.ndarray:
    from slimformer.analyze.weights import gaussian_matrix, gaussian_product

    if name in ("qk", "vo"):
        values = gaussian_product(rank, found["hidden"])
    else:
        values = gaussian_matrix(found["sites"][1]["units"], found["hidden"])
    relative: np.ndarray = (values / values[0]).numpy()
    return relative

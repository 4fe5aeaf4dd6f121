"""What figures are drawn with: colours, axes, heat maps.

Blocks are shades of one map that grows in lightness (cividis), categories are the colours of Okabe & Ito: all can be
told apart without telling red from green, and on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MAP = "cividis"
NULLS = {"iid": ("iid logits", ":"), "low_rank": ("rank-d logits", "--"), "shuffled": ("shuffled rows", "-.")}
ENERGIES = {"sum": "Σσ", "squares": "Σσ²"}
Facts = dict[str, Any]


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
            ax.plot(along(values), np.where(values > 1e-6, values, np.nan), color=shade(block, count), linewidth=1)
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


@dataclass(frozen=True)
class Shades:
    """Which colour stands for which number: a colour map, `how` imshow scales numbers to it, and ticks of its bar."""

    map: str = MAP
    how: dict[str, Any] = field(default_factory=dict)
    ticks: Sequence[float] | None = None


BY_VALUES = Shades()
OF_SHARES = Shades(how={"vmin": 0, "vmax": 1})


def heat(
    ax: Any, rows: Sequence[Sequence[float]], title: str, *, columns: Sequence[str] = (), xlabel: str = "",
    shades: Shades = BY_VALUES,
) -> None:  # fmt: skip
    """Blocks from top to bottom; where a block has fewer heads there is nothing."""
    wide = max((len(row) for row in rows), default=0) or 1
    grid = np.array([[*row, *([np.nan] * (wide - len(row)))] for row in rows], dtype=float)
    image = ax.imshow(grid, cmap=shades.map, aspect="auto", interpolation="nearest", **shades.how)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.06, pad=0.02)
    if shades.ticks is not None:
        bar.set_ticks(shades.ticks)
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
    """The last two parts of a path, to fit into a title, with nothing in it that would be read as a formula."""
    last = "/".join(name.rstrip("/").split("/")[-2:]) or name
    return (last if len(last) <= most else f"…{last[1 - most :]}").replace("$", r"\$")


def stretched(picture: np.ndarray) -> np.ndarray:
    """From 0 at the 1st to 1 at the 99th percentile: structure is a few per cent of the mean."""
    low, high = np.quantile(picture, (0.01, 0.99))
    stretched: np.ndarray = np.clip((picture - low) / max(float(high - low), 1e-30), 0, 1)
    return stretched


def _ticks(count: int, most: int) -> list[int]:
    step = max(1, -(-count // most))
    return list(range(0, count, step))


def along(values: np.ndarray) -> np.ndarray:
    return np.arange(1, len(values) + 1) / max(1, len(values))

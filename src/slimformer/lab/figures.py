"""Figures of an experiment: curves over steps, and what a row reaches against its parameters."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slimformer.checkpoint.atomic import replacing
from slimformer.lab.grid import slug
from slimformer.lab.settings import Experiment

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe & Ito
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*<>"
DPI = 130
Facts = dict[str, Any]


def can_draw() -> bool:
    """Whether matplotlib is here; without it an experiment has tables alone."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(folder: Path, experiment: Experiment, results: Sequence[Facts], entries: Sequence[Facts]) -> list[Path]:
    """Both figures for every data set, as PNG files below `figures`."""
    files = []
    for dataset in dict.fromkeys(entry["labels"]["dataset"] for entry in entries):
        mine = [entry for entry in entries if entry["labels"]["dataset"] == dataset and "validation" in entry]
        runs = [result for result in results if result["labels"]["dataset"] == dataset and result["history"]]
        if not mine:
            continue
        title = dataset if dataset == experiment.name else f"{experiment.name}: {dataset}"
        for name, figure in (("curves", _curves(title, mine, runs)), ("parameters", _parameters(title, mine))):
            files.append(folder / "figures" / f"{name}-{slug(dataset)}.png")
            with replacing(files[-1]) as file:
                figure.savefig(file, dpi=DPI, format="png", bbox_inches="tight")
    return files


def _curves(title: str, entries: Sequence[Facts], runs: Sequence[Facts]) -> Any:
    """Loss, and accuracy or perplexity, on the validation part: a line for each row, a thin one for each seed."""
    measures = ["loss", "perplexity" if "perplexity" in entries[0]["validation"] else "accuracy"]
    figure = _canvas(11, max(4.2, 0.26 * len(entries) + 1.2), title)
    axes = figure.subplots(1, 2)
    for number, entry in enumerate(entries):
        same = [result for result in runs if result["row"] == entry["row"] and not result["note"]]
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
        for ax, measure in zip(axes, measures, strict=True):
            for result in same if len(same) > 1 else ():
                ax.plot(*_curve(result, measure), linewidth=0.6, alpha=0.35, **style)
            steps = _curve(same[0], measure)[0]
            columns = zip(*(_curve(result, measure)[1] for result in same), strict=False)
            mean = [sum(values) / len(values) for values in columns]
            ax.plot(steps[: len(mean)], mean, linewidth=1.6, label=_short(entry), **style)
    for ax, measure in zip(axes, measures, strict=True):
        ax.set_xlabel("step")
        ax.set_ylabel(f"validation {measure}{' (%)' if measure == 'accuracy' else ''}")
        if measure == "perplexity":
            ax.set_yscale("log")
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _curve(result: Facts, measure: str) -> tuple[list[float], list[float]]:
    scale = 100 if measure == "accuracy" else 1
    return [at["step"] for at in result["history"]], [scale * at[measure] for at in result["history"]]


def _parameters(title: str, entries: Sequence[Facts]) -> Any:
    """Accuracy (perplexity for language models) against parameters, with the deviation over seeds."""
    measure = "perplexity" if "perplexity" in entries[0]["validation"] else "accuracy"
    scale = 100 if measure == "accuracy" else 1
    figure = _canvas(8.5, max(4.2, 0.26 * len(entries) + 1.2), title)
    ax = figure.subplots()
    for number, entry in enumerate(entries):
        score = entry["validation"][measure]
        how = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number // len(COLOURS) % len(MARKERS)]}
        error = None if score["std"] is None else scale * score["std"]
        ax.errorbar(entry["parameters"], scale * score["mean"], yerr=error, capsize=3, linestyle="none",
                    label=_short(entry), **how)  # fmt: skip
    ax.set_xscale("log")
    counts = _apart(sorted({entry["parameters"] for entry in entries}))
    ax.set_xticks(counts, [f"{count:,}" for count in counts], rotation=30, ha="right")
    ax.minorticks_off()
    ax.set_xlabel("parameters")
    ax.set_ylabel(f"validation {measure}{' (%)' if measure == 'accuracy' else ''}")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _apart(counts: Sequence[int]) -> list[int]:
    """Those whose labels do not run into each other on a logarithmic axis."""
    width = (counts[-1] / counts[0]) ** (1 / 16)
    shown = [counts[0]]
    for count in counts[1:]:
        if count > shown[-1] * width:
            shown.append(count)
    return shown


def _short(entry: Facts) -> str:
    """The row without the data set, which the title has."""
    return str(entry["row"]).removeprefix(f"{entry['labels']['dataset']}, ")


def _canvas(width: float, height: float, title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure

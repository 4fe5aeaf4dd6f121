"""The figure of ends.json: STS-B against megabytes, every way a point.

python benchmarks/ends_figure.py     docs/images/ends.svg, from benchmarks/results/ends.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cells import HERE

IMAGE = HERE.parent / "docs" / "images" / "ends.svg"
KINDS = {"widths alone": "s", "vocabulary alone": "^", "bits alone": "o", "together": "D"}


def kind_of(name: str) -> str:
    """Which of the three a way uses: one of them, or several."""
    parts = [part for part in ("vocabulary", "widths", "bits") if part in name]
    return f"{parts[0]} alone" if len(parts) == 1 and "at most" not in name else "together"


def figure(results: dict[str, Any], file: Path) -> None:
    """MB on a logarithmic axis; the dense model is a line."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "slimformer"  # the same results give the same file
    drawing = Figure(figsize=(7, 3.6), layout="constrained")
    axes = drawing.subplots()
    ways = {name: way for name, way in results["ways"].items() if name != "dense"}
    dense = results["ways"]["dense"]
    axes.axhline(dense["spearman"], color="0.6", linewidth=1, linestyle="--")
    axes.plot(dense["mb"], dense["spearman"], "*", color="0.3", markersize=11, label="dense")
    for kind, mark in KINDS.items():
        points = [(way["mb"], way["spearman"]) for name, way in ways.items() if kind_of(name) == kind]
        if points:
            axes.plot(*zip(*points, strict=True), mark, label=kind, markersize=6)
    axes.set_xscale("log")
    axes.set_xticks([10, 15, 20, 30, 50, 90], ["10", "15", "20", "30", "50", "90"])
    axes.minorticks_off()
    axes.set_xlabel("MB of weights")
    axes.set_ylabel("STS-B, Spearman")
    axes.set_title("all-MiniLM-L6-v2: fewer tokens, narrower blocks, fewer bits", fontsize=10)
    axes.legend(fontsize=8, loc="lower left")
    drawing.savefig(file, metadata={"Date": None})


def main() -> int:
    figure(json.loads((HERE / "results" / "ends.json").read_text("utf-8")), IMAGE)
    print(f"written: {IMAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

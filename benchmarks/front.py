"""Claim: the divergence the probes predict ranks the points of a front as the divergence that is measured does.

    python benchmarks/front.py                         stories15M, then minilm-sst2, and the figure of both
    python benchmarks/front.py stories15M --tokens 8192
    python benchmarks/front.py --figure                only the figure, from the results that are there

One calibration, then a plan for every 5 % of the block MACs, from 95 to 20 %. Every plan is carried out as `slimformer
cut` does, and its KL divergence from the dense model measured on held-out text that neither moments nor probes have
seen. Over a front both numbers must grow as budgets fall, so a rank correlation is easily high; the ratio of measured
and predicted says more, and is reported as well: 1 would be a prediction in nats.
Results: benchmarks/results/front-<model>.json and docs/images/front.svg. About four minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

from cells import HERE, deciding_code, write_json
from quality import calibrated_run
from slimformer.evaluate.compare import first_tokens
from slimformer.files.versions import versions
from slimformer.steps.frontier import correlation, frontier, sweep
from subjects import subject

MODELS = ("stories15M", "minilm-sst2")
TOKENS = 4096  # held out; whole vocabularies are compared at each
LEAST = 0.2  # of the MACs; below it nothing of a model is left to predict
IMAGE = HERE.parent / "docs" / "images" / "front.svg"
RESULTS = HERE / "results"


def front(name: str, tokens: int, least: float, console: Console) -> dict[str, Any]:
    """Predicted and measured divergence at every point of the front of one model, down to the budget `least`."""
    made = subject(name, quick=False)
    say = lambda text: console.print(f"{time.strftime('%H:%M:%S')} {name}: {text}")  # noqa: E731
    run, settings = calibrated_run(made, "balanced", say)
    run = replace(run, after=())  # predicted is what the cut alone does
    whole = frontier(run, settings)
    points = [point for point in whole if point.plan.macs < 1 and point.plan.budget >= least]
    report, batches = next(iter(made.reports.items()))
    held_out = first_tokens(batches, tokens)
    rows = []
    for row in sweep(run, settings, points, held_out):
        kl = next(metric["small"] for metric in row["metrics"] if metric["name"] == "kl")
        rows.append({**{key: row[key] for key in ("budget", "macs", "params", "predicted_kl")}, "kl": kl})
        say(f"{row['budget']:g}: predicted {row['predicted_kl']:.4g}, measured {kl:.4g}")
    settings = {**made.settings(), "report": report, "report_tokens": sum(batch.tokens for batch in held_out)}
    ratios = [row["kl"] / row["predicted_kl"] for row in rows]
    return {
        "benchmark": "front",
        "settings": {**settings, "versions": versions(), "code": deciding_code()},
        "points": rows,
        "rank_correlation": correlation((row["predicted_kl"], row["kl"]) for row in rows),
        "ratio": {"least": min(ratios), "most": max(ratios)},
    }


def table(results: Mapping[str, Any]) -> Table:
    """One line for each point."""
    out = Table(title=f"{results['settings']['model']}: rank correlation {results['rank_correlation']:.3f}")
    for column in ("MACs", "predicted KL", "measured KL", "measured / predicted"):
        out.add_column(column, justify="right")
    for row in results["points"]:
        ratio = row["kl"] / row["predicted_kl"]
        out.add_row(f"{row['macs']:.3f}", f"{row['predicted_kl']:.4g}", f"{row['kl']:.4g}", f"{ratio:.2f}")
    return out


def figure(all_results: Sequence[Mapping[str, Any]], file: Path) -> bool:
    """Measured against predicted divergence, both on logarithmic axes. False without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return False
    matplotlib.rcParams["svg.hashsalt"] = "slimformer"  # the same results give the same file
    drawing = Figure(figsize=(5.5, 4.5), layout="constrained")
    axes = drawing.subplots()
    values = [row[key] for each in all_results for row in each["points"] for key in ("predicted_kl", "kl")]
    ends = (min(values) / 1.5, max(values) * 1.5)
    axes.plot(ends, ends, color="0.7", linewidth=0.8, linestyle=":", label="measured = predicted")
    for each in all_results:
        name, rho = each["settings"]["model"], each["rank_correlation"]
        x, y = ([row[key] for row in each["points"]] for key in ("predicted_kl", "kl"))
        axes.plot(x, y, "o-", markersize=4, label=f"{name}, rank correlation {rho:.3f}")
        for row in each["points"]:
            if math.isclose(row["budget"] * 10 % 2, 0, abs_tol=1e-6):
                axes.annotate(f"{row['budget']:.0%}", (row["predicted_kl"], row["kl"]), fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="predicted KL, nats", ylabel="measured KL on held-out text, nats")
    axes.legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, metadata={"Date": None})
    return True


def draw(console: Console) -> None:
    """The figure of all results that are there."""
    files = [file for name in MODELS if (file := RESULTS / f"front-{name}.json").is_file()]
    if files and figure([json.loads(file.read_text(encoding="utf-8")) for file in files], IMAGE):
        console.print(f"written: {IMAGE}")


def main() -> int:
    """Run, print the tables, write the results and the figure."""
    parser = argparse.ArgumentParser(description="Predicted against measured KL along the front.")
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], default=[], help=", ".join(MODELS))
    parser.add_argument("--tokens", type=int, default=TOKENS, help="held-out tokens to measure on")
    parser.add_argument("--least", type=float, default=LEAST, help="the smallest budget to measure")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--figure", action="store_true", help="draw the results that are there, and measure nothing")
    options, console = parser.parse_args(), Console(width=120)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in () if options.figure else options.models or MODELS:
        results = front(name, options.tokens, options.least, console)
        console.print(table(results))
        write_json(RESULTS / f"front-{name}.json", results, indent=1)
    draw(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())

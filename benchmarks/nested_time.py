"""Claim: after one calibration, five budgets by `cut` take under 10 % of the time of five `compress --no-refine`, and
the models are the same bit for bit.

    python benchmarks/nested_time.py                    stories15M
    python benchmarks/nested_time.py minilm-sst2
    python benchmarks/nested_time.py --tokens 8192      less to calibrate on, which is in favour of `compress`

Both routes run in this process, one after the other, from opening the model to the finished weights; saving, which is
the same for both, is left out. `compress` also reads the data, calibrates, profiles, probes and measures the result, as
it does in the shell; latency is not measured. The ratio is given of all of it, and again without the measuring. Times
are seconds of this process's own (CPU), so that other work on the machine does not count; wall time stands beside.
Exit code 1 when the claim does not hold. Results: benchmarks/results/nested_time-<model>.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

from cells import HERE, deciding_code, weights_hash, write_json
from models import model_folder
from recipes import shared_file
from slimformer import compress
from slimformer.calibrate.gather import Reading, gather
from slimformer.calibrate.metric import fisher_metric
from slimformer.calibrate.store import open_statistics
from slimformer.files.versions import versions
from slimformer.models import describe
from slimformer.models.load import load_model
from slimformer.plan import Budget
from slimformer.recipe import cut_settings
from slimformer.steps.calibration import calibrate, keep_probes
from slimformer.steps.make import from_statistics, make
from slimformer.verbs.asked import model_of

BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5)
MOST = 0.10
RECIPE = "balanced"


def places(name: str) -> tuple[Path, Path, dict[str, Any]]:
    """Model folder, data file, and how it is read."""
    if name == "stories15M":
        data = shared_file("data", "tinystories_sample", "tinystories_sample.txt")
        return shared_file("models", name, "config.json").parent, data, {"seq_len": 256}
    return model_folder(name), shared_file("data", "sst2", "train_full.tsv"), {"seq_len": 64}


@contextmanager
def clock(times: list[dict[str, float]]) -> Iterator[None]:
    """CPU and wall seconds of what stands inside, appended to `times`."""
    cpu, wall = time.process_time(), time.perf_counter()
    yield
    times.append({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall})


def by_cut(stats: Path, budget: float) -> str:
    """What `slimformer cut` does up to saving; a hash of the weights."""
    statistics, settings = open_statistics(stats), cut_settings(RECIPE)
    run = from_statistics(model_of(statistics, None, {}), statistics, settings)
    return weights_hash(make(run, Budget(budget), settings).model)


def measured(name: str, tokens: int | None, console: Console) -> dict[str, Any]:
    """Both routes to five budgets."""
    model, data, how = places(name)
    how |= {"tokens": tokens}
    once: list[dict[str, float]] = []
    cuts: list[dict[str, float]] = []
    runs: list[dict[str, float]] = []
    measuring, same = 0.0, True
    with tempfile.TemporaryDirectory() as scratch:
        stats = Path(scratch) / "stats"
        with clock(once):
            loaded = load_model(model)
            read = gather(str(data), loaded.model, loaded.processor, describe(loaded.model), Reading(**how))
            metric = fisher_metric(loaded.model, read.splits["fit"], seed=read.seed)
            keep_probes(loaded.model, calibrate(loaded, read, stats, metric=metric), read.splits["select"])
        console.print(f"calibrate: {once[0]['cpu']:.1f} s")
        hashes = {}
        for budget in BUDGETS:  # the first also makes the curves, which the others find
            with clock(cuts):
                hashes[budget] = by_cut(stats, budget)
            console.print(f"cut {budget:g}: {cuts[-1]['cpu']:.1f} s")
        for budget in BUDGETS:
            with clock(runs):
                made = compress(str(model), str(data), macs=budget, recipe=RECIPE, refine=False, timing=False, **how)
            found = weights_hash(made.model)
            same = same and found == hashes[budget]
            share = made.report.seconds["evaluate"] / runs[-1]["wall"]
            measuring += share * runs[-1]["cpu"]
            console.print(f"compress {budget:g}: {runs[-1]['cpu']:.1f} s, the same bits: {found == hashes[budget]}")
    total = {key: (sum(t[key] for t in cuts), sum(t[key] for t in runs)) for key in ("cpu", "wall")}
    ratio = {key: a / b for key, (a, b) in total.items()} | {
        "cpu_without_measuring": total["cpu"][0] / (total["cpu"][1] - measuring)
    }
    return {
        "model": name, "tokens": read.tokens, "budgets": BUDGETS, "calibrate": once[0], "cut": cuts, "compress": runs,
        "ratio": ratio, "target": MOST, "same_bits": same, "holds": same and ratio["cpu"] < MOST,
    }  # fmt: skip


def main() -> int:
    """Run, print, write, and say whether the claim holds."""
    parser = argparse.ArgumentParser(description="Five budgets by `cut` against five by `compress --no-refine`.")
    parser.add_argument("model", nargs="?", default="stories15M", choices=["stories15M", "minilm-sst2"])
    parser.add_argument("--tokens", type=int, help="to calibrate on (default: that of the package)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for the result file")
    options, console = parser.parse_args(), Console(width=120)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    results = measured(options.model, options.tokens, console)
    about = {"benchmark": "nested_time", "versions": versions(), "code": deciding_code(), "threads": 1}
    write_json(options.out / f"nested_time-{options.model}.json", {**about, **results}, indent=1)
    console.print(f"cut over compress: {results['ratio']}, the same bits: {results['same_bits']}")
    return 0 if results["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

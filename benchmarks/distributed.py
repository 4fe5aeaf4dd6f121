"""Claim: two processes under torchrun find the moments of one to 1e-6 and make the same plan.

    python benchmarks/distributed.py                    stories15M, one process and then two, on this machine

Both are started as a user would start them, `python -m slimformer calibrate` and `torchrun … -m slimformer calibrate`,
with one thread for each process. The wall-clock ratio is reported with the load of the machine and is no part of the
claim: on a machine whose cores are busy with something else it says little. Exit code 1 when the claim does not hold.
Results: benchmarks/results/distributed.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cells import HERE, deciding_code, write_json
from recipes import shared_file
from slimformer.calibrate.store import Statistics, open_statistics
from slimformer.files.versions import versions
from slimformer.models.load import load_model
from slimformer.plan import Budget
from slimformer.recipe import cut_settings
from slimformer.steps.make import from_statistics, make_plan

MOST = 1e-6


def run(processes: int, *arguments: str) -> float:
    """Wall seconds of one command."""
    start = [sys.executable, "-m", "slimformer"]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        start = [sys.executable, *launcher, "-m", "slimformer"]
    began = time.perf_counter()
    subprocess.run([*start, *arguments], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - began


def difference(one: Statistics, two: Statistics) -> float:
    """The largest difference of two Gram matrices, relative to the largest entry."""
    worst = 0.0
    for i in range(one.provenance.n_blocks):
        ours, theirs = one.block(i), two.block(i)
        for name, splits in ours.sites.items():
            for split, moments in splits.items():
                gap = (moments.gram - theirs.sites[name][split].gram).abs().max() / moments.gram.abs().max()
                worst = max(worst, float(gap))
    return worst


def main() -> int:
    """Run, compare, write, and say whether the claim holds."""
    parser = argparse.ArgumentParser(description="Two processes under torchrun against one.")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for the result file")
    options = parser.parse_args()
    model = shared_file("models", "stories15M", "config.json").parent
    data = shared_file("data", "tinystories_sample", "tinystories_sample.txt")
    how = ["--data", str(data), "--tokens", str(options.tokens), "--seq-len", "256", "-q"]
    with tempfile.TemporaryDirectory() as scratch:
        load = os.getloadavg()[0]
        seconds = {n: run(n, "calibrate", str(model), *how, "--out", f"{scratch}/{n}") for n in (1, 2)}
        found = {n: open_statistics(Path(scratch) / str(n)) for n in (1, 2)}
        worst, settings, dense = difference(found[1], found[2]), cut_settings("balanced"), load_model(model)
        runs = [from_statistics(dense, statistics, settings) for statistics in found.values()]
        plans = [make_plan(run, Budget(0.6), settings) for run in runs]
    result = {
        "benchmark": "distributed", "versions": versions(), "code": deciding_code(), "model": "stories15M",
        "tokens": options.tokens, "seconds": seconds, "ratio": seconds[2] / seconds[1], "difference": worst,
        "same_plan": plans[0] == plans[1], "machine": {"cores": os.cpu_count(), "load": load},
    }  # fmt: skip
    write_json(options.out / "distributed.json", result, indent=1)
    print(result)
    return 0 if worst <= MOST and result["same_plan"] else 1


if __name__ == "__main__":
    sys.exit(main())

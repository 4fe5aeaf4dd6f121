"""Speed, as ratios within one run.

    python benchmarks/speed.py [calibration] [pivots] [latency] [--threads 2]

(a) calibration: seconds of calibrate + profile over the bound "FLOPs of the forward pass through the blocks and of the
    Gram matrices, at the speed of a large single-precision matrix product measured in the same run".
(b) pivots: the order of 3072 neurons from 16k tokens, once as the released STAT does (pivoted QR of the activations),
    once as we do (Gram matrix, pivoted Cholesky); the same pivots come out.
(c) latency: body latency ratio small / dense against the MAC ratio, interleaved runs; 1 is ideal.

Results go to benchmarks/results/speed.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import scipy.linalg
import torch

from slimformer.calibrate.gather import Reading, gather
from slimformer.evaluate.bench import random_inputs
from slimformer.evaluate.speed import Rounds, model_latency
from slimformer.linalg.moments import Moments
from slimformer.linalg.pivoted_cholesky import pivots
from slimformer.models import describe
from slimformer.models.load import load_model
from slimformer.plan import Budget
from slimformer.plan.cost import block_cost
from slimformer.recipe import cut_settings
from slimformer.steps.calibration import calibrate, profile
from slimformer.steps.make import carry_out, from_statistics, make_plan

RESULTS = Path(__file__).parent / "results" / "speed.json"


def sgemm_flops(seconds: float = 2.0, n: int = 2048) -> float:
    """FLOPs per second of a large single-precision matrix product: the median of repeats."""
    A, B = torch.randn(n, n), torch.randn(n, n)
    A @ B
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds:
        t = time.perf_counter()
        A @ B
        times.append(time.perf_counter() - t)
    return 2 * n**3 / sorted(times)[len(times) // 2]


def calibration(model: str = "demo:smollm2", tokens: int = 16_384) -> dict[str, Any]:
    """Seconds of calibrate + profile over the bound."""
    loaded = load_model(model)
    architecture = describe(loaded.model)
    data = gather("builtin", loaded.model, loaded.processor, architecture, Reading(tokens=tokens))
    counted = data.tokens["fit"] + data.tokens["select"]
    forward = 2 * block_cost(architecture, data.seq_len).macs * counted
    grams = sum(2 * site.width**2 for site in architecture) * counted
    before = sgemm_flops()
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        statistics = calibrate(loaded, data, Path(scratch))
        middle = time.perf_counter()
        profile(loaded.model, statistics, cut_settings("balanced"))
        end = time.perf_counter()
    speed = (before + sgemm_flops()) / 2
    bound = (forward + grams) / speed
    return {
        "model": model, "tokens": counted, "sgemm_gflops": speed / 1e9, "bound_seconds": bound,
        "calibrate_seconds": middle - start, "profile_seconds": end - middle, "ratio": (end - start) / bound,
        "target": 2.0,
    }  # fmt: skip


def pivoted_orders(tokens: int = 16_384, width: int = 3072) -> dict[str, Any]:
    """Pivoted QR of the activations against Gram + pivoted Cholesky, on the same activations."""
    torch.manual_seed(0)
    # activations of a random ReLU layer with a decaying spectrum, as trained layers have
    X = torch.relu(torch.randn(tokens, 768) * torch.logspace(0, -2, 768) @ torch.randn(768, width) + 0.1)
    gram_seconds, (order, _) = timed(lambda: pivots(Moments.of(X).gram))
    qr_seconds, (_, reference) = timed(lambda: scipy.linalg.qr(X.numpy(), mode="r", pivoting=True))
    same = float((order[: width // 2] == torch.from_numpy(reference[: width // 2]).long()).double().mean())
    return {
        "tokens": tokens, "width": width, "qr_seconds": qr_seconds, "gram_seconds": gram_seconds,
        "ratio": qr_seconds / gram_seconds, "same_first_half": same, "target": 10.0,
    }  # fmt: skip


def latency(model: str = "demo:smollm2", macs: float = 0.5, seq_len: int = 512, repeats: int = 7) -> dict[str, Any]:
    """Body latency ratio over MAC ratio, at several batch sizes, ragged and plain."""
    loaded = load_model(model)
    architecture = describe(loaded.model)
    data = gather("builtin", loaded.model, loaded.processor, architecture, Reading(tokens=2048, seq_len=seq_len))
    # sizes matter here, not quality
    settings = cut_settings("balanced").model_copy(update={"selector": "interpolative"})
    out = []
    with tempfile.TemporaryDirectory() as scratch:
        statistics = calibrate(loaded, data, Path(scratch))
        for format in ("ragged", "plain"):
            run = from_statistics(loaded, statistics, settings, format=format)
            plan = make_plan(run, Budget(macs), settings)
            small = carry_out(plan, loaded.model, statistics, run.curves)
            for batch in (1, 4):
                measured = model_latency(
                    loaded.model,
                    small,
                    random_inputs(loaded.model, batch, seq_len),
                    Rounds(repeats),
                    blocks=architecture.stacks[0].layout.blocks,
                )
                out.append(
                    {
                        "format": format, "batch": batch, "macs": plan.macs, "body_ratio": measured.body_ratio,
                        "end_to_end_ratio": measured.end_to_end_ratio, "of_ideal": plan.macs / measured.body_ratio,
                    }
                )  # fmt: skip
    return {
        "model": model,
        "seq_len": seq_len,
        "cells": out,
        "of_ideal": min(c["of_ideal"] for c in out),
        "target": 0.85,
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "calibration": calibration,
    "pivots": pivoted_orders,
    "latency": latency,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["benchmark"] = "speed"
    results["machine"] = {
        "threads": args.threads, "processor": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers", "scipy")},
    }  # fmt: skip
    for part in args.parts or PARTS:
        results[part] = PARTS[part]()
        print(part, json.dumps(results[part], indent=1))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

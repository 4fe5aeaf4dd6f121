"""Time and peak memory of one Linformer attention layer against exact attention, in one process.

    python -m pip install --no-deps --target DIR linformer linformer-pytorch          # peers, optional
    python benchmarks/linformer_speed.py [--threads 1] [--peers DIR] [--fresh] [--quick]

A layer of two heads of 64 with its four projections, batch 1, float32, random weights, which time does not depend on.
Rivals, all of them layers with queries, keys, values and output:

    sdpa        the same module with kind "exact": fused kernel, no n × n matrix in memory      n ≤ 65,536
    naive       softmax(Q Kᵀ) V written out                                                     n ≤ 8,192, then its size
    k=…         ours, trained E, one for keys and values (what sharing "key-value" and "layerwise" compute), k < n
    mean … cluster, causal      the other kinds at k = 128; causal: blocks of 128, trained row-stochastic E
    headwise    ours with E ≠ F, as the packages have it
    linformer, linformer-pytorch    the public packages, the first with E ≠ F, the second sharing "kv"; no masks

Within one n all rivals take turns in a random order, ratios are taken round by round and medians reported. Seconds are
processor time of this process, so that others on the machine count little; `--threads 1` makes them wall-clock seconds
of an idle machine. Peak memory is resident memory: freed pages are given back (malloc_trim), the high-water mark of the
kernel (VmHWM) is reset, one call is made, and the mark is read; weights and input were there before and do not count.
So kernels' own room is in it, and a few hundred kilobytes of noise are. "Training" is forward and backward.

The largest batch that fits is in `linformer_batch.py`. Cells (one mode, one n) are kept and taken up again by a run
with the same code and settings; `--fresh` measures all anew. Results go to benchmarks/results/linformer_speed.json.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import nn

from cells import code_hash, settings_hash, write_json
from models import cache_folder
from slimformer.lab.speed import Found, call_of, inputs_of, layer_of, take_turns, written_out

RESULTS = Path(__file__).parent / "results" / "linformer_speed.json"
PACKAGE = Path(__file__).resolve().parents[1] / "src" / "slimformer"
HEADS, WIDTH = 2, 128
KS = (128, 256, 512, 1024, 2048)
PEER_KS = (128, 512)
LENGTHS = {"forward": tuple(2**i for i in range(9, 17)), "training": tuple(2**i for i in range(9, 15))}
NAIVE = {"forward": 8192, "training": 4096}
KINDS = ("mean", "max", "conv", "cluster")
FITTED = 2048  # exponents are fitted from this length on: below it calls, not tokens, take the time
# Table 3 of the paper: speed-up and memory saved at inference, 16 GB V100, against attention written out
PAPER = {
    "time": {
        512: [1.5, 1.3], 1024: [1.7, 1.6, 1.3], 2048: [2.6, 2.4, 2.1, 1.3], 4096: [3.4, 3.2, 2.8, 2.2, 1.3],
        8192: [5.5, 5.0, 4.4, 3.5, 2.1], 16384: [8.6, 7.8, 7.0, 5.6, 3.3], 32768: [13, 12, 11, 8.8, 5.0],
        65536: [20, 18, 16, 14, 7.9],
    },
    "memory": {
        512: [1.7, 1.5], 1024: [3.0, 2.9, 1.8], 2048: [6.1, 5.6, 3.6, 2.0], 4096: [14, 13, 8.3, 4.3, 2.3],
        8192: [28, 26, 17, 8.5, 4.5], 16384: [56, 48, 32, 16, 8], 32768: [56, 48, 36, 18, 16],
        65536: [60, 52, 40, 20, 18],
    },
}  # fmt: skip


def rivals(n: int, mode: str, peers: dict[str, Any]) -> dict[str, Callable[[], nn.Module]]:
    """Who runs at this length; sdpa first."""
    out: dict[str, Callable[[], nn.Module]] = {"sdpa": lambda: ours(n, projection="exact")}
    if n <= NAIVE[mode]:
        out["naive"] = lambda: written_out(HEADS, WIDTH, n)
    for k in (k for k in KS if k < n):
        out[f"k={k}"] = lambda k=k: ours(n, k, sharing="key-value")
    for kind in KINDS if mode == "forward" else ():
        out[kind] = lambda kind=kind: ours(n, projection=kind, row_stochastic=True)
    out["stochastic"] = lambda: ours(n, sharing="key-value", row_stochastic=True)
    out["causal"] = lambda: ours(n, row_stochastic=True, is_causal=True, sharing="key-value", block_size=128)
    for k in (k for k in PEER_KS if k < n):
        out[f"headwise k={k}"] = lambda k=k: ours(n, k)
        for name, make in peers.items():
            out[f"{name} k={k}"] = lambda make=make, k=k: make(n, k)
    return out


def peer_packages(folder: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Makers of the layers of the public packages, and why one is not there."""
    if folder:
        sys.path.append(folder)
    makers: dict[str, Any] = {}
    missing: dict[str, str] = {}
    try:
        from linformer import LinformerSelfAttention

        makers["linformer"] = lambda n, k: LinformerSelfAttention(WIDTH, n, k=k, heads=HEADS)
    except ImportError as error:
        missing["linformer"] = str(error)
    try:
        from linformer_pytorch import MHAttention

        makers["linformer-pytorch"] = lambda n, k: MHAttention(
            n, WIDTH // HEADS, WIDTH, k, HEADS, 0.0, "C0", "kv", None, None, False, None
        )
    except ImportError as error:
        missing["linformer-pytorch"] = str(error)
    return makers, missing


def repeats_for(n: int, quick: bool) -> int:
    """Rounds after the one that also measures memory; the longest inputs have that one alone."""
    return 1 if quick else 7 if n <= 4096 else 4 if n <= 8192 else 3 if n <= 16384 else 1 if n <= 32768 else 0


def ours(n: int, k: int = 128, **settings: Any) -> nn.Module:
    return layer_of(HEADS, WIDTH, n, k, **settings)


def measured(mode: str, n: int, peers: dict[str, Any], quick: bool) -> list[Found]:
    """All rivals at one length, taking turns; long ones find everything warm."""
    calls = {name: call_of(make(), inputs_of(1, n, WIDTH), mode) for name, make in rivals(n, mode, peers).items()}
    return take_turns(calls, repeats_for(n, quick), warm=n > 8192, seed=n)


def exponents(cells: dict[str, dict[int, list[Found]]]) -> list[dict[str, Any]]:
    """Slope of log seconds over log n by least squares, from n = 2048 on and above 2 k."""
    rows = []
    for mode, by_length in cells.items():
        for name in dict.fromkeys(found.rival for each in by_length.values() for found in each):
            least = max(FITTED, 2 * int(name.rpartition("=")[2]) if "=" in name else 0)
            points = [
                (math.log(n), math.log(f.median)) for n, each in by_length.items() for f in each
                if f.rival == name and n >= least
            ]  # fmt: skip
            if len(points) >= 3:
                slope = statistics.linear_regression(*zip(*points, strict=True)).slope
                rows.append({"mode": mode, "rival": name, "exponent": slope, "from": least, "lengths": len(points)})
    return rows


def expected_minutes(peers: int) -> float:
    """Multiplications of the whole grid at 15 billion a second."""
    total = 0.0
    for mode, lengths in LENGTHS.items():
        for n in lengths:
            runs = (1 + repeats_for(n, False) + (n <= 8192)) * (1 if mode == "forward" else 3.5)
            ks = sum(k for k in KS if k < n) + 128 * 10 + (1 + 2 * peers) * sum(k for k in PEER_KS if k < n)
            pairs = 2 * n * n * (3 if n <= NAIVE[mode] else 1)
            total += runs * WIDTH * (pairs + 3 * n * ks + 4 * 12 * n * WIDTH)
    return total / 15e9 / 60


def not_run(missing: dict[str, str]) -> list[str]:
    """What the grid leaves out, and why."""
    return [
        *(f"{name}: not importable ({why}); see the head of this file" for name, why in missing.items()),
        f"naive forward beyond {NAIVE['forward']:,}: its scores alone are {HEADS * 16384**2 * 4 / 2**30:.0f} GB at "
        f"16,384 and {HEADS * 65536**2 * 4 / 2**30:.0f} GB at 65,536",
        f"naive training beyond {NAIVE['training']:,}: scores, weights and their gradients at once",
        f"packages at other k than {PEER_KS}, and kinds at other k than 128: time",
        f"training beyond {LENGTHS['training'][-1]:,}: sdpa alone would take minutes for a step",
        "a GPU: there is none; the paper's column is a V100 with the largest batch that fits, ours one sample",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", help="folder with the public packages, see above")
    parser.add_argument("--fresh", action="store_true", help="measure every cell anew")
    parser.add_argument("--quick", action="store_true", help="short inputs, nothing written: does it run?")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    peers, missing = peer_packages(args.peers)
    lengths = {mode: each[:3] if args.quick else each for mode, each in LENGTHS.items()}
    print(f"grid: {lengths}, k {KS}; about {expected_minutes(len(peers)):.0f} minutes of one core")
    left_out = not_run(missing)
    print("not run:", *left_out, sep="\n  ")
    files = [
        *(PACKAGE / "lab" / "architectures").glob("linformer*.py"),
        PACKAGE / "lab" / "speed.py",
        PACKAGE / "decompose" / "sequence.py",
        Path(__file__),
    ]
    settings = {"threads": args.threads, "peers": sorted(peers), "torch": torch.__version__}
    folder = cache_folder() / "linformer_speed" / f"{settings_hash(settings)}-{code_hash(files)}"
    start, cells, resumed = process_time(), dict[str, dict[int, list[Found]]](), 0
    for mode, each in lengths.items():
        cells[mode] = {}
        for n in each:
            file = folder / f"{mode}-{n}.json"
            if file.is_file() and not (args.fresh or args.quick):
                cells[mode][n], resumed = [Found(**row) for row in json.loads(file.read_text())], resumed + 1
                continue
            cells[mode][n] = measured(mode, n, peers, args.quick)
            for f in cells[mode][n]:
                said = f"{f.median * 1e3:10.1f} ms  x{f.speedup:6.2f}  {f.peak_bytes / 2**20:8.1f} MB"
                print(f"{mode:8} {n:6d} {f.rival:26} {said}", flush=True)
            if not args.quick:
                write_json(file, [asdict(f) for f in cells[mode][n]])
    results = {
        "benchmark": "linformer_speed",
        "machine": {
            "threads": args.threads, "processor": platform.processor() or platform.machine(),
            "versions": {name: _version(name, args.peers) for name in ("torch", *peers)},
        },
        "layer": {"heads": HEADS, "width": WIDTH, "batch": 1}, "ks": list(KS), "naive_up_to": NAIVE,
        "cells": {mode: {str(n): [asdict(f) for f in e] for n, e in by.items()} for mode, by in cells.items()},
        "exponents": exponents(cells), "paper": PAPER, "not_run": left_out,
        "cells_resumed": resumed, "processor_minutes": (process_time() - start) / 60,
    }  # fmt: skip
    if not args.quick:
        write_json(RESULTS, results, indent=1)
    print(f"{results['processor_minutes']:.1f} minutes of processor time, {resumed} cells resumed")


def _version(name: str, peers: str | None) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return f"in {peers}"


if __name__ == "__main__":
    main()

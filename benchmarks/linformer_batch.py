"""The largest batch whose training step fits in a stated memory, for exact attention and for Linformers.

    python benchmarks/linformer_batch.py [--threads 1] [--peers DIR]

Layers and peak memory are those of `linformer_speed.py`. Peaks do not grow quite evenly with the batch, because small
tensors are cut from pages that are there already and large ones are not. So the batch is sought: from each measured
peak the batch that would just fit is computed and run, until one fits and the next one that was tried does not, or
eight runs are over. Both are reported. Results go to benchmarks/results/linformer_batch.json. About 3 minutes of one
core.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cells import write_json
from linformer_speed import WIDTH, call_of, peak_of, peer_packages, rivals

RESULTS = Path(__file__).parent / "results" / "linformer_batch.json"
LENGTH, ROOM, RUNS = 2048, 2**29, 8
BATCHED = ("sdpa", "naive", "k=128", "k=256", "k=512", "k=1024", "linformer k=128", "linformer-pytorch k=128")


def sought(layer: nn.Module) -> dict[str, Any]:
    """The largest batch that was seen to fit, the smallest that was seen not to, and their peaks."""
    batch, seen = 8, dict[int, int]()
    for _ in range(RUNS):
        seen[batch] = peak_of(call_of(layer, torch.randn(batch, LENGTH, WIDTH), "training"))[0]
        fits = max((b for b, peak in seen.items() if peak <= ROOM), default=0)
        over = min((b for b, peak in seen.items() if peak > ROOM and b > fits), default=None)
        batch = max(fits + 1, int(batch * ROOM / seen[batch]))
        batch = batch if over is None or batch < over else (fits + over) // 2
        if batch in seen or over == fits + 1:
            break
    return {"batch": fits, "peak_bytes": seen.get(fits), "over": over, "over_bytes": seen.get(over or 0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", help="folder with the public packages, see linformer_speed.py")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    peers, missing = peer_packages(args.peers)
    rows = []
    for name, make in rivals(LENGTH, "training", peers).items():
        if name in BATCHED:
            rows.append({"rival": name, **sought(make())})
            print(rows[-1], flush=True)
    results = {"benchmark": "linformer_batch", "n": LENGTH, "room_bytes": ROOM, "rows": rows, "not_run": missing}
    write_json(RESULTS, results, indent=1)


if __name__ == "__main__":
    main()

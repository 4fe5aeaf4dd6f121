"""The largest batch whose training step fits in a stated memory, for exact attention and for Linformers.

    python benchmarks/linformer_batch.py [--threads 1] [--peers DIR]

Layers and peak memory are those of `linformer_speed.py`; how the batch is sought says `largest_batch` of
`slimformer.lab.speed`. Results go to benchmarks/results/linformer_batch.json. About 3 minutes of one
core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from cells import write_json
from linformer_speed import WIDTH, peer_packages, rivals
from slimformer.lab.speed import largest_batch

RESULTS = Path(__file__).parent / "results" / "linformer_batch.json"
LENGTH, ROOM = 2048, 2**29
BATCHED = ("sdpa", "naive", "k=128", "k=256", "k=512", "k=1024", "linformer k=128", "linformer-pytorch k=128")


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
            rows.append({"rival": name, **largest_batch(make(), LENGTH, WIDTH, ROOM)})
            print(rows[-1], flush=True)
    results = {"benchmark": "linformer_batch", "n": LENGTH, "room_bytes": ROOM, "rows": rows, "not_run": missing}
    write_json(RESULTS, results, indent=1)


if __name__ == "__main__":
    main()

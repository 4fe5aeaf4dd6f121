"""What each way to fewer bytes costs a sentence encoder: vocabulary, widths and bits, alone and together.

    python benchmarks/ends.py                        all ways
    python benchmarks/ends.py --quick --out FOLDER   few tokens and pairs, to see that it runs
    python benchmarks/ends.py --only "12 MB"         ways whose name holds this; the others stay in the file

MiniLM, calibrated and its tokens counted on the built-in text, which has nothing of STS-B. Reported on STS-B dev:
Spearman's correlation of cosines with the scores people gave, and its difference to the dense model, bootstrapped over
pairs; MB of the weights; tokens a sentence. Results: benchmarks/results/ends.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.stats import spearmanr

import slimformer
from cells import HERE, write_json
from slimformer.files.versions import versions
from slimformer.models.load import load_model
from stsb import Pairs, cosines, dev_pairs, embeddings, interval, resampled

RESAMPLES = 1000
WAYS: dict[str, dict[str, Any]] = {
    "vocabulary 20,000": {"recipe": "vocabulary", "vocab": 20_000},
    "vocabulary 16,000": {"recipe": "vocabulary", "vocab": 16_000},
    "vocabulary 16,000, not refitted": {
        "recipe": "vocabulary", "vocab": 16_000, "settings": {"vocabulary.refit": False}
    },
    "widths 0.7": {"macs": 0.7},
    "8 bits": {"recipe": "lossless", "bits": 8},
    "8 bits, tables too": {"recipe": "lossless", "bits": 8, "tables": True},
    "4 bits, tables too": {"recipe": "lossless", "bits": 4, "tables": True},
    "vocabulary 20,000, widths 0.7, 8 bits": {"vocab": 20_000, "macs": 0.7, "bits": 8},
    "widths 0.5, 8 bits, tables too": {"macs": 0.5, "bits": 8, "tables": True},
    "at most 12 MB": {"size": 12_000_000},
    "vocabulary 24,000, at most 12 MB": {"vocab": 24_000, "size": 12_000_000},
    "at most 10 MB": {"size": 10_000_000},
}  # fmt: skip


def measured(way: dict[str, Any], pairs: Pairs, dense: Any, before: Any, *, tokens: int) -> dict[str, Any]:
    """MB and STS-B of one way; the difference to the dense model with its interval."""
    asked = {"vocab_data": "builtin", **way} if "vocab" in way else way
    result = slimformer.compress(dense, "builtin", tokens=tokens, timing=False, **asked)
    own = result.loaded.processor
    values = cosines(embeddings(result.model, own, pairs.sentences), pairs)
    scores = np.array(pairs.scores)
    draws = np.random.default_rng(0).integers(0, len(scores), (RESAMPLES, len(scores)))
    gap = resampled(values, scores, draws) - resampled(before, scores, draws)
    lengths = [len(ids) for ids in own(list(pairs.sentences))["input_ids"]]
    return {
        "spearman": float(spearmanr(values, scores).statistic), "difference": interval(gap),
        "mb": result.report.small.bytes / 1e6, "macs": result.report.macs_kept, "tokens": float(np.mean(lengths)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="ways whose name holds this text")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    pairs, dense = dev_pairs(200 if asked.quick else None), load_model("demo:minilm")
    before = cosines(embeddings(dense.model, dense.processor, pairs.sentences), pairs)
    megabytes = 4e-6 * sum(parameter.numel() for parameter in dense.model.parameters())
    rows = {"dense": {"spearman": float(spearmanr(before, pairs.scores).statistic), "mb": megabytes}}
    tokens = 4096 if asked.quick else 16_384
    facts = {"benchmark": "ends", "pairs": len(pairs.scores), "calibration_tokens": tokens, "versions": versions()}
    results = {**facts, "ways": rows}
    if asked.only:
        rows |= json.loads((asked.out / "ends.json").read_text("utf-8"))["ways"]
    for name, way in WAYS.items():
        if asked.only not in name:
            continue
        rows[name] = measured(way, pairs, dense, before, tokens=tokens)
        Console().print(name, rows[name])
        write_json(asked.out / "ends.json", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())

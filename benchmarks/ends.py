"""What each way to fewer bytes costs a sentence encoder: vocabulary, widths and bits, alone and together.

    python benchmarks/ends.py                        all ways
    python benchmarks/ends.py --quick --out FOLDER   few tokens and pairs, to see that it runs
    python benchmarks/ends.py --only "12 MB"         that way, or all whose name holds this; others stay

MiniLM, calibrated and its tokens counted on the built-in text, which has nothing of STS-B. Reported on STS-B dev:
Spearman's correlation of cosines with the scores people gave, and its difference to the dense model, bootstrapped over
pairs; MB of the weights; tokens a sentence. Some ways are served as ONNX files with four bits, too (`ends_speed.py`),
next to the dense model in torch and in ONNX Runtime. Results: benchmarks/results/ends.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.stats import spearmanr

import slimformer
from cells import HERE, write_json
from ends_peers import trimmed
from ends_speed import Served, in_onnx, in_torch, scored, speeds
from slimformer.files.versions import versions
from slimformer.models.load import Loaded, load_model
from slimformer.steps.result import Result
from stsb import Pairs, cosines, dev_pairs, embeddings, interval, resampled

RESAMPLES = 1000
WAYS: dict[str, dict[str, Any]] = {
    "vocabulary 24,000": {"recipe": "vocabulary", "vocab": 24_000},
    "vocabulary 20,000": {"recipe": "vocabulary", "vocab": 20_000},
    "vocabulary 16,000": {"recipe": "vocabulary", "vocab": 16_000},
    "vocabulary 16,000, not refitted": {
        "recipe": "vocabulary", "vocab": 16_000, "settings": {"vocabulary.refit": False}
    },
    "vocabulary 9,000": {"recipe": "vocabulary", "vocab": 9000},
    "vocabulary 9,000 by the rule of vocabtrimmer": {"trimmed": 9000},
    "widths 0.7": {"macs": 0.7},
    "8 bits": {"recipe": "lossless", "bits": 8},
    "8 bits, tables too": {"recipe": "lossless", "bits": 8, "tables": True},
    "4 bits, tables too": {"recipe": "lossless", "bits": 4, "tables": True},
    "vocabulary 20,000, widths 0.7, 8 bits": {"vocab": 20_000, "macs": 0.7, "bits": 8},
    "widths 0.5, 8 bits, tables too": {"macs": 0.5, "bits": 8, "tables": True},
    "vocabulary 24,000, 4 bits, tables too": {
        "recipe": "vocabulary", "vocab": 24_000, "bits": 4, "group": 64, "tables": True
    },
    "at most 12 MB": {"size": 12_000_000},
    "vocabulary 24,000, at most 12 MB": {"vocab": 24_000, "size": 12_000_000},
    "at most 10 MB": {"size": 10_000_000},
}  # fmt: skip
ORDER = ("dense", *WAYS)
SERVED = ("vocabulary 24,000, 4 bits, tables too", "at most 12 MB", "vocabulary 24,000, at most 12 MB")


def made(way: dict[str, Any], dense: Any, *, tokens: int) -> Result:
    """The smaller model of one way."""
    asked = {"vocab_data": "builtin", **way} if "vocab" in way else way
    return slimformer.compress(dense, "builtin", tokens=tokens, timing=False, **asked)


def by_rule(dense: Loaded, keep: int, pairs: Pairs, before: Any) -> dict[str, Any]:
    """The same by the rule of another tool."""
    small = trimmed(dense, keep)
    megabytes = 4e-6 * sum(parameter.numel() for parameter in small.model.parameters())
    return {**scores_of(small, pairs, before), "mb": megabytes, "macs": 1.0}


def measured(result: Result, pairs: Pairs, before: Any) -> dict[str, Any]:
    """MB and STS-B of one way."""
    small = replace(result.loaded, model=result.model)
    size = {"mb": result.report.small.bytes / 1e6, "macs": result.report.macs_kept}
    return {**scores_of(small, pairs, before), **size}


def scores_of(small: Loaded, pairs: Pairs, before: Any) -> dict[str, Any]:
    """STS-B, the difference to the dense model with its interval, and the tokens of a sentence."""
    own = small.processor
    values = cosines(embeddings(small.model, own, pairs.sentences), pairs)
    scores = np.array(pairs.scores)
    draws = np.random.default_rng(0).integers(0, len(scores), (RESAMPLES, len(scores)))
    gap = resampled(values, scores, draws) - resampled(before, scores, draws)
    lengths = [len(ids) for ids in own(list(pairs.sentences))["input_ids"]]
    return {
        "spearman": float(spearmanr(values, scores).statistic), "difference": interval(gap),
        "tokens": float(np.mean(lengths)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="ways whose name holds this text, or several of them: A|B")
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
        known = json.loads((asked.out / "ends.json").read_text("utf-8"))
        rows |= known["ways"]
        results |= {part: known[part] for part in ("served", "peers", "language") if part in known}
    with tempfile.TemporaryDirectory() as scratch:
        others = {
            "dense, torch": in_torch(dense, dense.model, dense.processor),
            "dense, ONNX Runtime": onnx(dense, dense.model, dense.processor, Path(scratch), None, asked.threads),
        }
        for name, way in WAYS.items():
            if not any(part == name or (part in name and part not in WAYS) for part in asked.only.split("|")):
                continue
            result = None if "trimmed" in way else made(way, dense, tokens=tokens)
            keep = way.get("trimmed", 0)
            rows[name] = measured(result, pairs, before) if result else by_rule(dense, keep, pairs, before)
            if result and name in SERVED:
                own = onnx(dense, result.model, result.loaded.processor, Path(scratch), 4, asked.threads)
                found = speeds({**others, name: own}, pairs, repeats=2 if asked.quick else 7)
                found[name]["spearman"] = scored(own, pairs)
                results.setdefault("served", {})[name] = {"threads": asked.threads, "competitors": found}
            Console().print(name, rows[name])
            write_json(asked.out / "ends.json", {**results, "ways": {way: rows[way] for way in ORDER if way in rows}})
    return 0


def onnx(dense: Any, model: Any, tokenizer: Any, scratch: Path, bits: int | None, threads: int) -> Served:
    """One more file in ONNX Runtime."""
    folder = scratch / str(sum(1 for _ in scratch.iterdir()))
    return in_onnx(dense, model, tokenizer, folder, bits=bits, threads=threads)


if __name__ == "__main__":
    sys.exit(main())

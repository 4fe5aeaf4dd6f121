"""MiniLM in torch and in ONNX Runtime: latency ratios within one run, and how far the embeddings move.

    python benchmarks/export_speed.py [--threads 1] [--repeats 12]

Eight competitors take turns: the dense model and `balanced` at half of its block MACs, each in torch, in torch with
linear layers in int8 (torch's dynamic quantization), in ONNX Runtime, and there in int8 (as `slimformer export --int8`
writes it). Ratios are to the dense model in torch, round by round. Embeddings (mean of the last states over real
tokens, length one) of held-out text, which was neither calibrated nor chosen on, are compared with

    its own     those of the same model in torch, float32: what runtime and rounding change
    the dense   those of the dense model in torch: what is left of the original

Results go to benchmarks/results/export_speed.json. Under five minutes on one core.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from slimformer import compress
from slimformer.calibrate.gather import Reading, gather
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.sentence import Pooling
from slimformer.evaluate.speed import Rounds, compare_latency
from slimformer.export.compare import TOLERANCE
from slimformer.export.graph import Graph, outputs_of, sample
from slimformer.export.onnx_file import FILE, PACKAGES, quantize, runner, write_onnx
from slimformer.models import describe
from slimformer.models.load import load_model

RESULTS = Path(__file__).parent / "results" / "export_speed.json"
MODEL, MACS, TOKENS, LENGTH = "demo:minilm", 0.5, 4096, 128
SHAPES = ((1, 32), (1, 128), (8, 128))  # batch × tokens
Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Competitor:
    """A model in a runtime; `own` is the name of the model."""

    own: str
    runtime: str
    number: str
    run: Run
    bytes: int | None


def competitors(graphs: dict[str, Graph], scratch: Path, threads: int) -> dict[str, Competitor]:
    """Every model in every runtime, the reference first."""
    found: dict[str, Competitor] = {}
    for own, graph in graphs.items():
        weights = sum(p.numel() * p.element_size() for p in graph.parameters())
        found[f"{own}, torch"] = Competitor(own, "torch", "f32", _torch(graph), weights)
        found[f"{own}, torch int8"] = Competitor(own, "torch", "int8", _torch(_rounded(graph)), None)
        folder = scratch / own
        folder.mkdir()
        write_onnx(graph, folder)  # refused where outputs differ by more than 1e-4 of the largest
        rounded = folder / "int8" / FILE
        rounded.parent.mkdir()
        shutil.copyfile(folder / FILE, rounded)
        quantize(rounded)
        for path, number in ((folder / FILE, "f32"), (rounded, "int8")):
            name = f"{own}, ONNX Runtime" + (" int8" if number == "int8" else "")
            run = runner(path, graph, threads=threads)
            found[name] = Competitor(own, "ONNX Runtime", number, run, path.stat().st_size)
        print(f"exported {own}", flush=True)
    return found


def _torch(graph: Graph) -> Run:
    return lambda inputs: outputs_of(graph, inputs)


def _rounded(graph: Graph) -> Graph:
    """Linear layers in int8, activations rounded as they come; by torch itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: Any = torch.ao.quantization.quantize_dynamic(graph, {nn.Linear}, dtype=torch.qint8)
    return made


def embeddings(run: Run, batches: list[Batch], names: tuple[str, ...]) -> Tensor:
    """One row for each text."""
    rows = []
    for batch in batches:
        given = {name: batch.inputs.get(name, torch.zeros_like(batch.inputs["input_ids"])) for name in names}
        rows.append(run(given)["sentence_embedding"])
    return torch.cat(rows)


def fidelity(all_of: dict[str, Competitor], batches: list[Batch], names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """How far the embeddings are from those of the same model, and of the dense model, in torch."""
    found = {name: embeddings(each.run, batches, names) for name, each in all_of.items()}
    dense, result = found["dense, torch"], {}
    for name, each in all_of.items():
        own, rows = found[f"{each.own}, torch"], found[name]
        cosine, to_dense = (torch.cosine_similarity(rows, other, dim=-1) for other in (own, dense))
        result[name] = {
            "largest": float((rows - own).abs().max()), "cosine": float(cosine.mean()),
            "lowest_cosine": float(cosine.min()), "cosine_to_dense": float(to_dense.mean()),
        }  # fmt: skip
    return result


def latency(all_of: dict[str, Competitor], graph: Graph, repeats: int) -> list[dict[str, Any]]:
    """Ratios to the dense model in torch, for every shape."""
    rows = []
    for batch, length in SHAPES:
        inputs = sample(graph.model, batch, length)
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        calls = {name: functools.partial(each.run, inputs) for name, each in all_of.items()}
        found = compare_latency(calls, Rounds(repeats, 3))
        for name, timing in found.timings.items():
            rows.append(
                {
                    "name": name, "batch": batch, "length": length, "ratio": timing.ratio, "low": timing.ratio_low,
                    "high": timing.ratio_high, "median_seconds": timing.median,
                }
            )  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    small = compress(MODEL, data="builtin", macs=MACS, tokens=TOKENS, seq_len=LENGTH, timing=False)
    print(f"compressed to {small.report.macs_kept:.3f}", flush=True)
    loaded = load_model(MODEL)
    data = gather(
        "builtin",
        loaded.model,
        loaded.processor,
        describe(loaded.model),
        Reading(seq_len=LENGTH, tokens=TOKENS, seed=0),
    )
    held_out = list(data.splits["report"])
    pooling = Pooling("mean", True)
    graphs = {"dense": Graph(loaded.model, pooling).eval(), "half": Graph(small.model, pooling).eval()}
    names = graphs["dense"].input_names
    with tempfile.TemporaryDirectory() as scratch:
        all_of = competitors(graphs, Path(scratch), args.threads)
        close = fidelity(all_of, held_out, names)
        rows = latency(all_of, graphs["dense"], args.repeats)
    texts = sum(len(batch.inputs["input_ids"]) for batch in held_out)
    results = {
        "benchmark": "export_speed", "model": MODEL, "macs": small.report.macs_kept, "tokens": TOKENS, "texts": texts,
        "tolerance": TOLERANCE, "repeats": args.repeats,
        "machine": {
            "threads": args.threads, "processor": platform.processor() or platform.machine(),
            "versions": {name: version(name) for name in ("torch", "transformers", *PACKAGES)},
        },
        "competitors": {
            name: {"model": c.own, "runtime": c.runtime, "number": c.number, "bytes": c.bytes, **close[name]}
            for name, c in all_of.items()
        },
        "latency": rows,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

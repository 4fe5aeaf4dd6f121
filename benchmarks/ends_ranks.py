"""Embedding and head of words of SmolLM2 by two thin matrices: what each rank loses, and what other ways lose.

    python benchmarks/ends_ranks.py head      the head alone, which then is not the embedding any longer
    python benchmarks/ends_ranks.py both      one table for both, as it was

Fitted on WikiText-2 valid, measured on its test part: bits per byte more than the dense model. Blocks that are cut are
those of `quality.py` (`balanced`, calibrated on 32,768 tokens of the same text, measured on 16,384), fewer tokens those
of `ends_language.py`. About a minute each on one core. Results: benchmarks/results/ends.json, `ranks`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cells import HERE, write_json
from recipes import shared_file
from slimformer.calibrate.ends import embedding_metric, read_by_head
from slimformer.calibrate.text import Batch
from slimformer.decompose.factored import factored
from slimformer.evaluate.perplexity import perplexity
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model
from slimformer.plan.cost import block_cost, outside_macs
from slimformer.rewrite.low_rank_ends import with_low_rank_ends

RANKS = (512, 384)  # of 576
FITTED, MEASURED, LENGTH, CHARACTERS = 2048, 1024, 256, 40_000
RIDGE = 1e-3
BLOCKS = (0.9, 0.8)


def text_of(dense: Loaded, part: str, tokens: int) -> tuple[Tensor, int]:
    """So many tokens of WikiText-2, and how many bytes they are."""
    text = shared_file("data", "wikitext2", f"{part}.txt").read_text("utf-8")[:CHARACTERS]
    ids = dense.processor(text, return_tensors="pt")["input_ids"][0, :tokens]
    return ids.reshape(-1, LENGTH), len(dense.processor.decode(ids).encode())


def loss(model: Any, ids: Tensor) -> float:
    """Nats a token."""
    return perplexity(model, [Batch({"input_ids": ids}, None)]).nll


def shares(dense: Any, small: Any) -> dict[str, float]:
    """Of all MACs and weights what is left."""
    params = [sum(parameter.numel() for parameter in model.parameters()) for model in (dense, small)]
    return {"macs": everything(small) / everything(dense), "params": params[1] / params[0]}


def everything(model: Any) -> int:
    """MACs of a token."""
    architecture = describe(model)
    return block_cost(architecture, LENGTH).macs + outside_macs(model, architecture, LENGTH)


def low_rank(dense: Loaded, end: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every rank of one or both ends."""
    model = dense.model
    fit, _ = text_of(dense, "valid", FITTED)
    batches = [Batch({"input_ids": fit}, None)]
    moments, frequencies = read_by_head(model, batches)
    C = moments.second(centred=False)
    if end == "both":
        C = C + embedding_metric(model, batches, seed=0)
    W = model.get_output_embeddings().weight.detach()
    of = factored(W, frequencies, C, ridge=RIDGE)
    ids, size = text_of(dense, "test", MEASURED)
    before = loss(model, ids)
    for rank in RANKS:
        ends = ("embedding", "head") if end == "both" else ("head",)
        small = with_low_rank_ends(model, dict.fromkeys(ends, of.at(W, rank)))
        bits = (loss(small, ids) - before) * ids.numel() / size / math.log(2)
        yield f"{' and '.join(ends)} of rank {rank}", {"bits": bits, **shares(model, small)}


def others(dense: Loaded) -> Iterator[tuple[str, dict[str, Any]]]:
    """Fewer tokens and narrower blocks, as other benchmarks measured them."""
    model, results = dense.model, HERE / "results"
    ids, size = text_of(dense, "test", MEASURED)
    outside, params = everything(model), sum(parameter.numel() for parameter in model.parameters())
    cost = block_cost(describe(model), LENGTH)
    for cell in json.loads((results / "quality-smollm2.json").read_text("utf-8"))["cells"]:
        if cell["method"] == "balanced" and cell["budget"] in BLOCKS:
            nats = cell["reports"]["wikitext2"]["excess"]
            yield (
                f"blocks at {cell['budget']:g} of their MACs",
                {
                    "bits": nats * ids.numel() / size / math.log(2),
                    "macs": 1 - (1 - cell["macs"]) * cost.macs / outside,
                    "params": 1 - (1 - cell["params"]) * cost.params / params,
                },
            )
    width = model.config.hidden_size
    for title, row in json.loads((results / "ends.json").read_text("utf-8"))["language"]["smollm2"].items():
        if row["vocabulary"] and row["params"] == 1.0:
            gone = (model.config.vocab_size - row["vocabulary"]) * width
            yield title, {"bits": row["bits"] - row["dense"], "macs": 1 - gone / outside, "params": 1 - gone / params}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("end", choices=["head", "both"])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dense, results = load_model("demo:smollm2"), json.loads((asked.out / "ends.json").read_text("utf-8"))
    known = results.get("ranks", {})
    rows = dict(others(dense)) | {title: row for title, row in known.items() if "of rank" in title}
    for title, row in low_rank(dense, asked.end):
        rows[title] = row
        print(title, row, flush=True)
    write_json(asked.out / "ends.json", {**results, "ranks": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())

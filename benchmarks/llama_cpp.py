"""A ragged cut in llama.cpp itself: the same words, perplexity and tokens per second, beside the dense file.

    python benchmarks/llama_cpp.py [--rounds 5] [--macs 0.6]

stories15M (LLaMA family, trained in float32), dense and cut by whole heads and neurons, block by block as many as the
probes say (`attention: heads`, `ffn: neurons`; refined). Both are written as GGUF by `export`, the dense one as
`llama`, the cut one as `deci`, in f32, f16 and q8_0, and opened by llama.cpp (the package xllamacpp).

    same tokens   of up to 24 prompts from held-out text, 32 tokens each, chosen greedily: how many are the same as in
                  transformers, with the weights of the file; where one is not, how near the two most likely tokens were
    perplexity    of the same held-out tokens, one by one, there and in transformers in float32
    tokens/s      prompts of 128 tokens, 64 after each, dense and cut in turns; medians and quartiles over rounds

Results: benchmarks/results/llama_cpp.json. About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor

import slimformer
from cells import HERE, write_json
from slimformer.calibrate.gather import Reading, gather
from slimformer.export.llama_cpp import PACKAGE, run_llama_cpp
from slimformer.models import describe
from slimformer.models.load import load_model

SHARED = HERE.parents[1] / "shared"
MODEL, TEXT = SHARED / "models" / "stories15M", SHARED / "data" / "tinystories_sample" / "tinystories_sample.txt"
QUANTS = ("f32", "f16", "q8_0")
WHOLE = {"cut.attention": "heads", "cut.ffn": "neurons"}
PROMPTS, PROMPT, GREEDY = 24, 8, 32
ROWS, SCORED = 6, 40  # texts, and tokens of each that are scored
SPEED_PROMPT, SPEED_NEW = 128, 64
TOKENS = 6_144  # to calibrate on


def held_out(model: Any, tokenizer: Any, length: int) -> Tensor:
    """Rows of text that was neither fitted nor chosen on: the report split, as it is read for calibration."""
    data = gather(str(TEXT), model, tokenizer, describe(model), Reading(seq_len=length, tokens=TOKENS))
    rows = [row for batch in data.splits["report"] for row in batch.inputs["input_ids"]]
    return torch.stack([row for row in rows if len(row) == length])


@torch.no_grad()
def greedy(model: Any, ids: list[int], theirs: list[int]) -> tuple[bool, float]:
    """Are these the words of the model? If not, how much more likely its own was (log probability) where they part."""
    logits = model(torch.tensor([ids + theirs[:-1]])).logits[0, len(ids) - 1 :].log_softmax(-1)
    for step, token in zip(logits, theirs, strict=True):
        if int(step.argmax()) != token:
            return False, float(step.max() - step[token])
    return True, 0.0


@torch.no_grad()
def nats_here(model: Any, rows: Tensor) -> list[float]:
    """Of the tokens that llama.cpp is asked for, in transformers."""
    found = []
    for row in rows:
        logits = model(row[None]).logits[0].log_softmax(-1)
        found += [-float(logits[i - 1, row[i]]) for i in range(len(row) - SCORED, len(row))]
    return found


def nats_there(file: Path, rows: Tensor) -> list[float | None]:
    """The same in llama.cpp: a request for every token; none where a token ends in the middle of a character."""
    places = [(row.tolist(), i) for row in rows for i in range(len(row) - SCORED, len(row))]
    said = run_llama_cpp(file, [ids[:i] for ids, i in places], forced=[ids[i] for ids, i in places])
    return [None if each["logprob"] is None else -each["logprob"] for each in said]


def perplexities(model: Any, file: Path, rows: Tensor) -> dict[str, Any]:
    """Over the tokens that both can say something of."""
    pairs = [
        (here, there)
        for here, there in zip(nats_here(model, rows), nats_there(file, rows), strict=True)
        if there is not None
    ]
    here, there = (math.exp(sum(nats) / len(pairs)) for nats in zip(*pairs, strict=True))
    return {"scored": len(pairs), "perplexity": here, "perplexity_there": there}


def speeds(files: dict[str, Path], rows: Tensor, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Tokens per second of prompts and of what follows: the files take turns, the first round does not count."""
    found: dict[str, dict[str, list[float]]] = {name: {"prompt": [], "decode": []} for name in files}
    for i in range(rounds + 1):
        for name, file in files.items():
            prompts = [row.tolist()[:SPEED_PROMPT] for row in rows[2 * i % len(rows) :][:2]]
            said = run_llama_cpp(file, prompts, new_tokens=SPEED_NEW)[-1]["timings"]
            if i:
                found[name]["prompt"].append(said["prompt_per_second"])
                found[name]["decode"].append(said["predicted_per_second"])
    return found


def middle(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [round(value, 1) for value in quantiles(values, n=4)]


def main() -> None:
    """Cut, write, open, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--macs", type=float, default=0.6)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_json(HERE / "results" / "llama_cpp.json", measured(Path(scratch), asked.macs, asked.rounds))


def measured(scratch: Path, macs: float, rounds: int) -> dict[str, Any]:
    """Everything, model by model and number by number."""
    dense = load_model(MODEL)
    how = {"settings": WHOLE, "tokens": TOKENS, "timing": False, "only_data": True, "seq_len": 192}
    result = slimformer.compress(dense, str(TEXT), macs=macs, **how)
    models = {"dense": MODEL, "cut": result.save(scratch / "cut")}
    opened = {name: load_model(folder) for name, folder in models.items()}
    rows = held_out(dense.model, dense.processor, 192)
    found: dict[str, Any] = {}
    for quant in QUANTS:
        files = {}
        for name, loaded in opened.items():
            place = scratch / f"{name}-{quant}"
            made = slimformer.export(models[name], to="gguf", out=place, quant=quant)
            files[name] = place / made.file
            prompts = [row.tolist()[:PROMPT] for row in rows[:PROMPTS]]
            said = run_llama_cpp(files[name], prompts, new_tokens=GREEDY)
            same = [greedy(loaded.model, ids, each["tokens"]) for ids, each in zip(prompts, said, strict=True)]
            found[f"{name}, {quant}"] = {
                "bytes": made.bytes, "texts": len(same), "same": sum(yes for yes, _ in same),
                "nearest": max(gap for _, gap in same), **perplexities(loaded.model, files[name], rows[:ROWS]),
            }  # fmt: skip
            print(name, quant, found[f"{name}, {quant}"], flush=True)
        for name, rates in speeds(files, rows, rounds).items():
            found[f"{name}, {quant}"] |= {f"{phase}_per_second": middle(each) for phase, each in rates.items()}
        for file in files.values():
            shutil.rmtree(file.parent)
    blocks = [
        [block.heads[0].units, block.neurons[0].units] for block in describe(opened["cut"].model).blocks
    ]  # fmt: skip
    return {
        "benchmark": "llama_cpp", "model": MODEL.name, "macs": result.plan.macs, "params": result.plan.params,
        "rounds": rounds,
        "blocks": blocks, "prompt": SPEED_PROMPT, "new_tokens": SPEED_NEW, "threads": 1,
        "versions": {name: version(name) for name in (PACKAGE, "gguf", "torch", "transformers")}, "files": found,
    }  # fmt: skip


if __name__ == "__main__":
    main()

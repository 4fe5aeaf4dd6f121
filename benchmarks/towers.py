"""Image–text matching of two towers before and after a cut: a small CLIP that is trained here.

    python benchmarks/towers.py                 writes benchmarks/results/towers.json, in some minutes
    python benchmarks/render.py                 then writes the table in docs/models.md

No registry of packages holds a trained one, as far as was searched. Pictures of plain shapes and their captions
(`calibrate.own_pairs`): trained on some seeds, calibrated on another, matched on a third, 32 at a time. Loss of
training and matches are those of CLIP (arXiv 2103.00020). Target: at 70 % of the block MACs at most two points fewer
matches than the dense model.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, PreTrainedTokenizerFast

import slimformer
from cells import HERE, write_json
from slimformer.calibrate.captions import captioned_batches, read_captioned
from slimformer.calibrate.own_pairs import COLOURS, SHAPES, SIZES, drawn, own_pairs
from slimformer.evaluate.accuracy import matches
from slimformer.evaluate.intervals import paired_difference
from slimformer.files.versions import versions

SIDE, POSITIONS, BATCH, STEPS, RATE = 48, 32, 64, 1_000, 1e-3
PAIRS, MEASURED = 600, 1_024  # calibrated on, and matched
BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5)
RECIPES = ("balanced", "fast", "uniform", "stat")
TARGET = {"budget": 0.7, "points": 2.0}
BLOCKS = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6}


def processor() -> CLIPProcessor:
    """Every word a number; pictures scaled as CLIP does."""
    words = ["<pad>", "<unk>", "<s>", "</s>", "a", "an", "and", "on", "ground", *COLOURS, *SHAPES, *SIZES]
    inner = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        model_max_length=POSITIONS,
    )  # fmt: skip
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    return CLIPProcessor(images, tokenizer)


def blank(vocabulary: int) -> CLIPModel:
    text = {**BLOCKS, "vocab_size": vocabulary, "max_position_embeddings": POSITIONS, "pad_token_id": 0,
            "bos_token_id": 2, "eos_token_id": 3}  # fmt: skip
    image = {**BLOCKS, "image_size": SIDE, "patch_size": 8}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=64))


def trained(reader: CLIPProcessor, steps: int, seed: int = 0) -> CLIPModel:
    """The model after so many steps of CLIP's own loss, every picture new."""
    torch.manual_seed(seed)
    model: Any = blank(len(reader.tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        inputs = drawn_inputs(reader, [[seed + 1, step, i] for i in range(BATCH)])
        loss = model(**inputs, return_loss=True).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {float(loss.detach()):.3f}", flush=True)
    return model.eval()


def drawn_inputs(reader: CLIPProcessor, seeds: list[list[int]]) -> dict[str, Tensor]:
    pairs = [drawn((SIDE, SIDE), np.random.default_rng(seed)) for seed in seeds]
    texts = reader.tokenizer([text for _, text in pairs], padding=True, return_tensors="pt")
    images = reader.image_processor([image for image, _ in pairs], return_tensors="pt")
    return {"input_ids": texts["input_ids"], "attention_mask": texts["attention_mask"], **images}


def run(steps: int) -> dict[str, Any]:
    reader = processor()
    model = trained(reader, steps)
    fitted = own_pairs(PAIRS, sides=(SIDE, SIDE), seed=1001)
    measured = read_captioned(own_pairs(MEASURED, sides=(SIDE, SIDE), seed=2002))
    batches = captioned_batches(measured, model, reader)
    dense = matches(model, batches)
    cells = []
    with tempfile.TemporaryDirectory() as scratch:
        for recipe in RECIPES:
            for budget in BUDGETS:
                result = slimformer.compress(
                    model, fitted, processor=reader, macs=budget, recipe=recipe, timing=False, tokens=PAIRS * POSITIONS
                )
                result.save(Path(scratch) / "small", force=True)
                found = matches(slimformer.load(Path(scratch) / "small"), batches)  # what is served
                gap = paired_difference(list(dense.correct), list(found.correct))
                cells.append({"recipe": recipe, "budget": budget, "macs": result.report.macs_kept,
                              "matches": found.value, "gap": gap.value, "low": gap.low, "high": gap.high})  # fmt: skip
                print(cells[-1], flush=True)
    return {
        "benchmark": "towers", "steps": steps, "pairs": {"fit": PAIRS, "measured": MEASURED}, "chance": 1 / 32,
        "dense": dense.value, "target": TARGET, "cells": cells, "versions": versions(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "towers.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    write_json(options.out, run(options.steps), indent=1)


if __name__ == "__main__":
    main()

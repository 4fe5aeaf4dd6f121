"""Sentences a second: the dense encoder in torch and in ONNX Runtime, and smaller ones in ONNX Runtime.

All of them read the same sentences of STS-B, already in tokens (each with its own tokenizer), in turns within one run:
one at a time, and 32 of like length at once. An ONNX file of a smaller model is scored on STS-B, too: what it takes and
what it gives are then said of the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import cosine_similarity

from slimformer.checkpoint.sentence import pooling_of
from slimformer.evaluate.speed import Rounds, compare_latency
from slimformer.export.graph import Graph, outputs_of
from slimformer.export.onnx_file import FILE, runner, write_onnx
from stsb import Pairs

TIMED, TOGETHER, LENGTH = 96, 32, 64
Inputs = dict[str, Tensor]
Run = Callable[[Inputs], dict[str, Tensor]]


@dataclass(frozen=True)
class Served:
    """An encoder in a runtime, with its tokenizer; `bytes` are those of the file it is read from."""

    run: Run
    tokenizer: Any
    names: tuple[str, ...]
    bytes: int

    def inputs(self, sentences: Sequence[str], at_once: int) -> list[Inputs]:
        """Batches of like length, in order."""
        ordered = sorted(sentences, key=len)
        parts = [ordered[i : i + at_once] for i in range(0, len(ordered), at_once)]
        return [self.tokens(part) for part in parts]

    def tokens(self, sentences: Sequence[str]) -> Inputs:
        given = self.tokenizer(list(sentences), padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        return {name: given[name] for name in self.names}


def in_torch(loaded: Any, model: Any, tokenizer: Any) -> Served:
    """An encoder in torch, in single precision."""
    graph = Graph(model, pooling_of(loaded.companions)).eval()
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    return Served(lambda inputs: outputs_of(graph, inputs), tokenizer, graph.input_names, size)


def in_onnx(loaded: Any, model: Any, tokenizer: Any, folder: Path, *, bits: int | None, threads: int) -> Served:
    """The same in ONNX Runtime, written as `slimformer export` writes it."""
    graph = Graph(model, pooling_of(loaded.companions)).eval()
    folder.mkdir(parents=True, exist_ok=True)
    write_onnx(graph, folder, bits=bits)
    run = runner(folder / FILE, graph, threads=threads)
    return Served(run, tokenizer, graph.input_names, (folder / FILE).stat().st_size)


def scored(served: Served, pairs: Pairs) -> float:
    """Spearman's correlation on STS-B."""
    place = {text: i for i, text in enumerate(sorted(pairs.sentences, key=len))}
    rows = torch.cat([served.run(each)["sentence_embedding"] for each in served.inputs(pairs.sentences, TOGETHER)])
    first, second = ([place[pairs.sentences[i]] for i in side] for side in (pairs.first, pairs.second))
    return float(spearmanr(cosine_similarity(rows[first], rows[second]).numpy(), pairs.scores).statistic)


def speeds(all_of: dict[str, Served], pairs: Pairs, *, repeats: int) -> dict[str, dict[str, Any]]:
    """Sentences a second, and the ratio to the first competitor with its quartiles, one at a time and together."""
    chosen = np.random.default_rng(0).choice(len(pairs.sentences), TIMED, replace=False)
    sentences = [pairs.sentences[i] for i in chosen]
    found: dict[str, dict[str, Any]] = {name: {"mb": each.bytes / 1e6} for name, each in all_of.items()}
    for how, at_once in (("alone", 1), ("together", TOGETHER)):
        calls = {name: _reading(each, each.inputs(sentences, at_once)) for name, each in all_of.items()}
        for name, timing in compare_latency(calls, Rounds(repeats, 1)).timings.items():
            rate = [1 / timing.ratio, 1 / timing.ratio_high, 1 / timing.ratio_low]
            found[name][how] = {"per_second": TIMED / timing.median, "times": rate}
    return found


def _reading(served: Served, batches: Sequence[Inputs]) -> Callable[[], object]:
    return lambda: [served.run(each) for each in batches]

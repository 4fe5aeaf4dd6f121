"""Time, peak memory and largest batch of one Linformer layer beside exact attention, as in the paper's tables.

A layer is queries, keys, values and output with random weights, which time does not depend on. Rivals of one length
take turns in a random order, ratios are taken round by round, and medians are reported. Seconds are processor time of
this process, so others on the machine count little; with one thread they are those of an idle machine.

Peak memory is resident memory: freed pages are given back (malloc_trim), the high-water mark of the kernel (VmHWM) is
reset, one call is made, and the mark is read; weights and input were there before and do not count. A few hundred
kilobytes of noise are in it. Only Linux has such a mark.
"""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any, Literal

import torch
from torch import Tensor, nn

from slimformer.lab.architectures.linformer_attention import LinformerAttention
from slimformer.lab.architectures.linformer_config import LinformerConfig
from slimformer.messages.progress import Progress

Call = Callable[[], object]
Mode = Literal["forward", "training"]
RUNS = 8  # to find a batch that just fits
WRITTEN_OUT, DECOMPOSED = 4096, 512  # longest inputs for which there is a matrix n × n, and for which it is decomposed
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Found:
    """One rival at one length: seconds of every round, their median, speed-up over the first rival round by round, and
    the bytes one call adds at its worst moment, where the system tells."""

    rival: str
    seconds: list[float]
    median: float
    speedup: float
    peak_bytes: int


class Naive(LinformerAttention):
    """Attention written out, which is what the paper compared with."""

    def _context(self, query: Tensor, key: Tensor, value: Tensor, mask: Any, projections: Any) -> Tensor:
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def layer_of(heads: int, width: int, n: int, k: int = 128, **settings: Any) -> nn.Module:
    """A layer for inputs of n tokens."""
    return LinformerAttention(_config(heads, width, n, k, **settings))


def written_out(heads: int, width: int, n: int) -> nn.Module:
    """The same with attention written out."""
    return Naive(_config(heads, width, n, 1, projection="exact"))


def inputs_of(batch: int, n: int, width: int) -> Tensor:
    """What every rival is given."""
    return torch.randn(batch, n, width, generator=torch.Generator().manual_seed(0))


def table(
    lengths: Sequence[int], ks: Sequence[int], layer: tuple[int, int], mode: Mode, room: int, progress: Progress
) -> list[dict[str, Any]]:
    """A row for every length and rival of a `layer` of so many heads and this width; with `room` bytes also the largest
    batch whose training step fits in them."""
    heads, width = layer
    rows: list[dict[str, Any]] = []
    for n in lengths:
        layers = rivals(n, ks, heads, width)
        calls = {name: call_of(layer, inputs_of(1, n, width), mode) for name, layer in layers.items()}
        times = take_turns(calls, 5 if n <= 2048 else 2, seed=n)
        known = can_tell_memory()
        for done, each in enumerate(times, 1):
            row = {
                "n": n, "layer": each.rival, "seconds": each.median, "speedup": each.speedup,
                "peak_bytes": each.peak_bytes if known else None,
                "memory_ratio": times[0].peak_bytes / max(1, each.peak_bytes) if known else None,
            }  # fmt: skip
            if room and known:
                row |= {"largest": largest_batch(layers[each.rival], n, width, room)}
            rows.append(row)
            progress(f"{n} tokens", done, len(times))
    return rows


def rivals(n: int, ks: Sequence[int], heads: int, width: int) -> dict[str, nn.Module]:
    """Exact attention in a fused kernel first; then written out, rank k of what it is, and k trained rows."""
    layers = {"exact": layer_of(heads, width, n, projection="exact")}
    if n <= WRITTEN_OUT:
        layers["written out"] = written_out(heads, width, n)
    smaller = [k for k in ks if k < n]
    if n <= DECOMPOSED and smaller:
        layers[f"svd k {smaller[0]}"] = layer_of(heads, width, n, smaller[0], projection="svd")
    return layers | {f"k {k}": layer_of(heads, width, n, k, sharing="key-value") for k in smaller}


def take_turns(calls: dict[str, Call], rounds: int, *, warm: bool = False, seed: int = 0) -> list[Found]:
    """Every call in every round, in an order drawn anew; with `warm` the call that measures memory counts, too."""
    for call in calls.values() if not warm else ():
        call()
    first = {name: peak_of(call) for name, call in calls.items()}
    seconds = {name: [taken] if warm else [] for name, (_, taken) in first.items()}
    order = random.Random(seed)
    for _ in range(rounds):
        for name in order.sample(list(calls), len(calls)):
            start = process_time()
            calls[name]()
            seconds[name].append(process_time() - start)
    dense = seconds[next(iter(calls))]
    return [
        Found(
            name, taken, statistics.median(taken),
            statistics.median(d / t for d, t in zip(dense, taken, strict=True)), first[name][0],
        )
        for name, taken in seconds.items()
    ]  # fmt: skip


def call_of(layer: nn.Module, x: Tensor, mode: str) -> Call:
    """One forward pass, or one forward and backward pass."""
    if mode == "forward":
        layer.eval()

        def forward() -> None:
            with torch.inference_mode():
                layer(x)

        return forward
    layer.train()
    x = x.clone().requires_grad_()

    def step() -> None:
        layer(x).square().mean().backward()
        layer.zero_grad(set_to_none=True)
        x.grad = None

    return step


def largest_batch(layer: nn.Module, n: int, width: int, room: int) -> dict[str, Any]:
    """The largest batch whose training step was seen to fit, the smallest that was seen not to, and their peaks.

    Peaks do not grow quite evenly with the batch, because small tensors are cut from pages that are there already and
    large ones are not. So from each measured peak the batch that would just fit is computed and run, until one fits and
    the next one that was tried does not, or eight runs are over.
    """
    batch, seen = 8, dict[int, int]()
    for _ in range(RUNS):
        seen[batch] = peak_of(call_of(layer, inputs_of(batch, n, width), "training"))[0]
        fits = max((b for b, peak in seen.items() if peak <= room), default=0)
        over = min((b for b, peak in seen.items() if peak > room and b > fits), default=None)
        batch = max(fits + 1, int(batch * room / max(1, seen[batch])))
        batch = batch if over is None or batch < over else (fits + over) // 2
        if not batch or batch in seen or over == fits + 1:
            break
    return {"batch": fits, "peak_bytes": seen.get(fits), "over": over, "over_bytes": seen.get(over or 0)}


def can_tell_memory() -> bool:
    """Is there a high-water mark that can be reset?"""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmHWM") > 0 and hasattr(ctypes.CDLL(None), "malloc_trim")
    except (OSError, StopIteration):
        return False


def peak_of(call: Call) -> tuple[int, float]:
    """Bytes of resident memory one call adds at its worst moment (0 where nobody can tell), and its seconds."""
    known = can_tell_memory()
    if known:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS") if known else 0
    start = process_time()
    call()
    seconds = process_time() - start
    return (max(0, _status("VmHWM") - before) if known else 0), seconds


def _status(key: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def _config(heads: int, width: int, n: int, k: int, **settings: Any) -> LinformerConfig:
    return LinformerConfig(
        hidden_size=width, num_attention_heads=heads, max_position_embeddings=n, k=k, attention_probs_dropout_prob=0.0,
        **settings,
    )  # fmt: skip

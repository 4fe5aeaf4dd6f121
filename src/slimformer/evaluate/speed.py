"""Latency, size on disk and number of parameters, measured: the only latency module in the package.

Competitors take turns within every round, in a random order, so that a machine that slows down or speeds up
meets all of them alike. The ratio to the first competitor is the quotient of the two medians,

    ratio = median t_r / median t_r(first) over rounds r,        < 1 is faster,

so that it is that of the times printed next to it; its quartiles are those of the quotients round by round.

A model is measured as a whole (end to end) and in its body, the stack of blocks without embeddings and head:
the time between entering the first block and leaving the last one, in the same forward pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from slimformer.errors import ModelNotFound
from slimformer.evaluate.fidelity import headless
from slimformer.evaluate.perplexity import device_of, evaluating
from slimformer.models.experts import as_stored


@dataclass(frozen=True)
class Timing:
    """Seconds of one competitor (median, quartiles, all rounds), ratio to the first (of medians, with quartiles)."""

    median: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Latency:
    """Timings by name; `reference` is the name the ratios refer to."""

    timings: dict[str, Timing]
    reference: str
    repeats: int
    warmup: int
    seed: int
    threads: int
    device: str


@dataclass(frozen=True)
class ModelLatency:
    """Ratios small / dense and the timings behind them ("dense", "small"), for `inputs` of these shapes."""

    body_ratio: float
    end_to_end_ratio: float
    body: Latency
    end_to_end: Latency
    inputs: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ParameterCount:
    """Unique parameters, tied ones once: in the blocks, and outside (embeddings, heads, the last norm)."""

    total: int
    blocks: int
    outside: int


@dataclass(frozen=True)
class Rounds:
    """How often competitors are timed: `warmup` rounds that do not count, `repeats` that do; `seed` draws the order."""

    repeats: int = 20
    warmup: int = 3
    seed: int = 0


ROUNDS = Rounds()


def compare_latency(
    models: Mapping[str, Callable[[], object]], rounds: Rounds = ROUNDS, *, device: torch.device | str | None = None
) -> Latency:
    """Time callables against each other, the first being the reference. They run without autograd.

    `device` is the one to wait for: the accelerator of this machine if there is one, unless said otherwise.
    """
    place = torch.accelerator.current_accelerator() if device is None else torch.device(device)
    place = torch.device("cpu") if place is None else place
    runs = {name: _timed(call, place) for name, call in models.items()}
    with torch.inference_mode():
        times = _times(runs, rounds)
    seconds = {name: [total for (total,) in rows] for name, rows in times.items()}
    return _latency(seconds, rounds, place)


def model_latency(
    dense: nn.Module,
    small: nn.Module,
    inputs: Mapping[str, Tensor],
    rounds: Rounds = ROUNDS,
    *,
    blocks: str | Sequence[str],
) -> ModelLatency:
    """Latency of `small` against `dense`, body and end to end apart, from the same forward passes.

    `blocks` is the path of the blocks inside the headless model ("layers", "encoder.layer", "h"); of an encoder and a
    decoder both, in the order they run: the body is then all from the first block of the one to the last of the other.
    """
    paths = [blocks] if isinstance(blocks, str) else list(blocks)
    place = device_of(dense)
    if device_of(small) != place:
        raise ValueError(f"the models are on {place} and {device_of(small)}; put both on one device")
    batch = {name: value.to(place) for name, value in inputs.items()}
    models = {"dense": dense, "small": small}
    with as_stored(dense, small), evaluating(dense, small):
        runs = {name: _timed_body(model, paths, batch, place) for name, model in models.items()}
        times = _times(runs, rounds)
    whole, body = (
        _latency({name: [row[part] for row in rows] for name, rows in times.items()}, rounds, place) for part in (0, 1)
    )
    shapes = {name: tuple(value.shape) for name, value in batch.items()}
    return ModelLatency(body.timings["small"].ratio, whole.timings["small"].ratio, body, whole, shapes)


def file_size(folder: Path | str) -> int:
    """Bytes of all safetensors files in a model folder."""
    sizes = [file.stat().st_size for file in Path(folder).glob("*.safetensors")]
    if not sizes:
        raise ModelNotFound(f"{folder} holds no safetensors file; save the model there to learn its size")
    return sum(sizes)


def parameter_count(model: nn.Module, *, blocks: str) -> ParameterCount:
    """Numbers of unique parameters. `blocks` is the path of the blocks inside the headless model."""
    total = sum(parameter.numel() for parameter in model.parameters())
    inside = sum(parameter.numel() for parameter in _stack(model, blocks).parameters())
    return ParameterCount(total, inside, total - inside)


def _stack(model: nn.Module, blocks: str) -> nn.ModuleList:
    body = headless(model)
    stacks = {name: module for name, module in body.named_modules() if isinstance(module, nn.ModuleList)}
    if not stacks.get(blocks):
        known = ", ".join(stacks) or "none"
        raise ValueError(f"{type(body).__name__} has no blocks at {blocks!r}; lists of modules in it: {known}")
    return stacks[blocks]


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was asked to do so far."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return perf_counter()


def _timed(call: Callable[[], object], device: torch.device) -> Callable[[], tuple[float, ...]]:
    def run() -> tuple[float, ...]:
        start = _now(device)
        call()
        return (_now(device) - start,)

    return run


def _timed_body(
    model: nn.Module, blocks: Sequence[str], inputs: dict[str, Tensor], device: torch.device
) -> Callable[[], tuple[float, ...]]:
    first, last = _stack(model, blocks[0])[0], _stack(model, blocks[-1])[-1]

    def run() -> tuple[float, ...]:
        with _marks(first, last, device) as marks:
            (total,) = _timed(lambda: model(**inputs), device)()
        if len(marks) < 2:
            raise ValueError(
                f"a forward pass of {type(model).__name__} did not run the blocks at {', '.join(blocks)!r}"
            )
        return total, marks[-1] - marks[0]

    return run


@contextmanager
def _marks(first: nn.Module, last: nn.Module, device: torch.device) -> Iterator[list[float]]:
    """Points in time: the first one before the first block, the last one after the last block."""
    marks: list[float] = []

    def mark(*_: object) -> None:
        marks.append(_now(device))

    hooks = [first.register_forward_pre_hook(mark), last.register_forward_hook(mark)]
    try:
        yield marks
    finally:
        for hook in hooks:
            hook.remove()


def _times(runs: Mapping[str, Callable[[], tuple[float, ...]]], rounds: Rounds) -> dict[str, list[tuple[float, ...]]]:
    """What every run returned in every round after the warm-up; each round has its own random order."""
    if not runs or rounds.repeats < 1:
        raise ValueError(f"{len(runs)} competitors in {rounds.repeats} rounds: there is nothing to time")
    shuffled = random.Random(rounds.seed)
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in runs}
    for turn in range(rounds.warmup + rounds.repeats):
        for name in shuffled.sample(list(runs), len(runs)):
            result = runs[name]()
            if turn >= rounds.warmup:
                times[name].append(result)
    return times


def _latency(seconds: Mapping[str, list[float]], rounds: Rounds, device: torch.device) -> Latency:
    reference = next(iter(seconds))
    timings = {name: _timing(values, seconds[reference]) for name, values in seconds.items()}
    how = (rounds.repeats, rounds.warmup, rounds.seed)
    return Latency(timings, reference, *how, torch.get_num_threads(), str(device))


def _timing(seconds: list[float], reference: list[float]) -> Timing:
    quartiles = [0.25, 0.5, 0.75]
    low, median, high = np.quantile(seconds, quartiles).tolist()
    ratio = median / float(np.median(reference))
    ratio_low, _, ratio_high = np.quantile(np.divide(seconds, reference), quartiles).tolist()
    return Timing(median, low, high, ratio, min(ratio_low, ratio), max(ratio_high, ratio), tuple(seconds))

"""Dense and small as they would serve: latency and throughput over batch sizes, peak memory, cache.

    prefill     a forward pass over T tokens that fills the cache, logits of the last position only
    decode      one new token after T, the mean of `new_tokens` steps (their cache grows as it does in use)
    forward     encoders and vision models: one pass

All times are medians of interleaved rounds (`evaluate/speed.py`); throughput = batch · tokens / seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from slimformer.calibrate.gather import positions, sequence_length
from slimformer.errors import SequenceTooLong
from slimformer.evaluate.compare import is_language_model
from slimformer.evaluate.memory import peak_bytes
from slimformer.evaluate.perplexity import device_of, evaluating
from slimformer.evaluate.speed import Latency, Rounds, compare_latency
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.experts import as_stored
from slimformer.models.sample_inputs import seen_or_heard, vocabulary_size, with_others
from slimformer.nn.grouped_cache import cache_bytes

CACHED = ("keys", "values", "memory")  # what a layer of a cache remembers; the last where keys are grouped


@dataclass(frozen=True)
class Measurement:
    """One phase at one batch size: seconds of a pass or a step, ratio small / dense with quartiles, items a second."""

    phase: str
    batch: int
    dense_seconds: float
    small_seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    dense_rate: float
    small_rate: float
    dense_peak_bytes: int  # 0 where the runtime does not tell
    small_peak_bytes: int
    dense_sequence_rate: float = 0.0  # sentences, or images, a second; none of a step that decodes
    small_sequence_rate: float = 0.0


@dataclass(frozen=True)
class Bench:
    """What was measured, and everything the figures depend on. Bytes of the cache are of one sequence of T tokens."""

    dense: str
    small: str
    device: str
    threads: int
    seq_len: int
    new_tokens: int
    repeats: int
    warmup: int
    unit: str  # of the rates: tokens, images or positions of sounds
    weights_bytes: dict[str, int]
    kv_cache_bytes: dict[str, int]
    measurements: list[Measurement]
    runtime: str = "torch"

    def to_dict(self) -> dict[str, Any]:
        return {"slimformer_bench": 1, **asdict(self)}


Pair = Mapping[str, PreTrainedModel]


@dataclass(frozen=True)
class Workload:
    """What both models serve: batches of these sizes, prompts of `seq_len` tokens, `new_tokens` decoded after them."""

    batch_sizes: Sequence[int] = (1, 4)
    seq_len: int | None = None
    new_tokens: int = 16


WORKLOAD, ROUNDS = Workload(), Rounds(repeats=10, warmup=2)


def bench(
    dense: PreTrainedModel,
    small: PreTrainedModel,
    workload: Workload = WORKLOAD,
    rounds: Rounds = ROUNDS,
    *,
    names: tuple[str, str] = ("dense", "small"),
    progress: Progress = silent,
) -> Bench:
    """Measure both models at every batch size. Cost: about (repeats + warmup) passes of each, for every size."""
    family = describe(dense).family
    decoder = is_language_model(dense) and not family.reads_pairs
    batch_sizes, new_tokens = workload.batch_sizes, workload.new_tokens
    length = _length(dense, workload.seq_len, new_tokens if decoder else 0)
    pair = {"dense": dense, "small": small}
    measurements: list[Measurement] = []
    phases = _generation if decoder else _forward
    with as_stored(dense, small), evaluating(dense, small):
        for i, batch in enumerate(batch_sizes):
            progress("bench", i, len(batch_sizes))
            # tokens of the smaller model: it may know fewer, and all of them are known to the other
            inputs = random_inputs(small, batch, length, rounds.seed)
            measurements += phases(pair, inputs, length, new_tokens, rounds)
        caches = {name: cache_bytes(_prefill(model, random_inputs(small, 1, length, rounds.seed))) if decoder else 0
                  for name, model in pair.items()}  # fmt: skip
    progress("bench", len(batch_sizes), len(batch_sizes))
    return Bench(
        dense=names[0], small=names[1], device=str(device_of(dense)), threads=torch.get_num_threads(), seq_len=length,
        new_tokens=new_tokens if decoder else 0, repeats=rounds.repeats, warmup=rounds.warmup,
        unit=family.unit,
        weights_bytes={name: sum(p.nbytes for p in model.parameters()) for name, model in pair.items()},
        kv_cache_bytes=caches, measurements=measurements,
    )  # fmt: skip


def _length(model: PreTrainedModel, asked: int | None, new_tokens: int) -> int:
    """The length of a prompt, such that what is decoded after it has positions too."""
    architecture = describe(model)
    length = sequence_length(model, architecture, asked)
    room = length if architecture.family.unit != "tokens" else positions(model.config) - new_tokens
    if room < 1 or (asked is not None and length > room):
        raise SequenceTooLong(
            f"{length if asked else 1:,} tokens and {new_tokens:,} new ones are more than the "
            f"{positions(model.config):,} positions of the model; lower {option('seq_len')} or {option('new_tokens')}"
        )
    return min(length, room)


def random_inputs(model: PreTrainedModel, batch: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Random tokens, pixels or sounds: latency does not depend on what they say."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {name: x.to(model.dtype) for name, x in seen_or_heard(model, batch, length, generator).items()}
    if not inputs:
        ids = torch.randint(vocabulary_size(model.config), (batch, length), generator=generator)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs = with_others(model, inputs, generator, length)
    return {name: tensor.to(device_of(model)) for name, tensor in inputs.items()}


def _forward(pair: Pair, inputs: dict[str, Tensor], length: int, _new: int, rounds: Rounds) -> Iterator[Measurement]:
    calls = {name: (lambda model=model: model(**inputs)) for name, model in pair.items()}
    items = 1 if "pixel_values" in inputs else length
    yield _measured("forward", inputs, items, 1, calls, compare_latency(calls, rounds, device=_place(pair)))


def _generation(pair: Pair, inputs: dict[str, Tensor], length: int, new: int, rounds: Rounds) -> Iterator[Measurement]:
    calls = {name: (lambda model=model: _prefill(model, inputs)) for name, model in pair.items()}
    yield _measured("prefill", inputs, length, 1, calls, compare_latency(calls, rounds, device=_place(pair)))
    steps = {name: _decoding(model, inputs, new) for name, model in pair.items()}
    yield _measured("decode", inputs, 1, new, steps, compare_latency(steps, rounds, device=_place(pair)))


def _place(pair: Pair) -> torch.device:
    return device_of(pair["dense"])


def _prefill(model: Any, inputs: dict[str, Tensor]) -> DynamicCache:
    """Fill a cache. As in generation, the head sees the last position only, where the model knows how to do that."""
    last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    cache = DynamicCache()
    model(**inputs, past_key_values=cache, use_cache=True, **last)
    return cache


def _decoding(model: Any, inputs: dict[str, Tensor], new: int) -> Callable[[], None]:
    """A call that decodes `new` tokens after the same T every time."""
    cache: Any = _prefill(model, inputs)
    filled = [{part: getattr(layer, part, None) for part in CACHED} for layer in cache.layers]
    token, mask = inputs["input_ids"][:, -1:], inputs["attention_mask"]

    def decode() -> None:
        for layer, parts in zip(cache.layers, filled, strict=True):
            vars(layer).update(parts)  # growing makes new tensors, so these are as they were
        for i in range(1, new + 1):
            seen = torch.nn.functional.pad(mask, (0, i), value=1)
            model(input_ids=token, attention_mask=seen, past_key_values=cache, use_cache=True)

    return decode


def _measured(
    phase: str, inputs: dict[str, Tensor], items: int, steps: int, calls: Mapping[str, Callable[[], object]],
    latency: Latency,
) -> Measurement:  # fmt: skip
    dense, small = (peak_bytes(calls[name]) for name in ("dense", "small"))
    return measurement(phase, (len(next(iter(inputs.values()))), items, steps), latency, (dense, small))


def measurement(phase: str, work: tuple[int, int, int], latency: Latency, peaks: tuple[int, int]) -> Measurement:
    """What was timed: `work` is the batch, the items of a sequence that count, and the steps of one call."""
    batch, items, steps = work
    dense, small = (latency.timings[name].median / steps for name in ("dense", "small"))
    ratio = latency.timings["small"]
    rates = (batch * items / dense, batch * items / small)
    whole = (batch / dense, batch / small) if phase != "decode" else (0.0, 0.0)
    spread = (ratio.ratio, ratio.ratio_low, ratio.ratio_high)
    return Measurement(phase, batch, dense, small, *spread, *rates, *peaks, *whole)

"""Perplexity of a causal language model: the only one in the package.

    nll = −(1/n) Σ log p(x_t | what the model read before x_t),   ppl = exp(nll),   n predicted tokens, nats

What counts depends on what is given.

A stream of tokens (one long tensor) is read through a window that moves on by `stride`. Every token but the
very first is predicted exactly once, after the first window from at least window − stride + 1 tokens:

    a b c d e f g h          window 4, stride 2
    a b c d                  predicts b c d e
        c d e f              predicts       f g
          d e f g            predicts           h     (the last window moves on by what is left)

Batches are taken as they are: every row on its own, its first real token not predicted, padding not counted.
Rows of 2048 packed tokens are the convention of the GPTQ line of papers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from slimformer.calibrate.text import Batch
from slimformer.errors import NotFinite

LOGITS = 2**26  # logits one forward pass may return, unless a single row has more: 256 MB in float32
POSITIONS = 256  # positions whose logits are copied to float32 at once: 50 MB for a vocabulary of 49k


@dataclass(frozen=True)
class Perplexity:
    """`nll` is the mean over `tokens`, in nats. Windows that predict nothing are left out of the tuples.

    nll = Σ nll_per_window · tokens_per_window / tokens, so the tuples are values and weights for a bootstrap.
    """

    nll: float
    ppl: float
    tokens: int
    nll_per_window: tuple[float, ...]
    tokens_per_window: tuple[int, ...]


def perplexity(
    model: nn.Module, ids: Tensor | Iterable[Batch], *, window: int | None = None, stride: int | None = None
) -> Perplexity:
    """Perplexity on a stream of tokens (`stride` = `window` unless given), or on batches (give neither).

    Cost: one forward pass over the batches, or window / stride passes over the stream.
    """
    if not isinstance(ids, Tensor) and (window is not None or stride is not None):
        raise ValueError("batches are windows already; `window` and `stride` are for one long tensor")
    windows = _of_stream(model, ids, window, stride) if isinstance(ids, Tensor) else _of_batches(model, ids)
    sums: list[float] = []
    counts: list[int] = []
    with evaluating(model):
        for part in windows:
            sums += _nll_of_rows(model(**part.inputs).logits, part).tolist()
            counts += part.counted.sum(1).tolist()
    return _summary(sums, counts)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode without autograd inside; afterwards every module has the mode it had before."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """Where the model is: the device of its first parameter, the CPU if it has none."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def pieces(model: nn.Module, batch: Batch) -> Iterator[Batch]:
    """`batch` on the device of `model`, few enough rows at a time that language-model logits stay small."""
    batch = batch.to(device_of(model))
    first = next(iter(batch.inputs.values()))
    rows = _rows_that_fit(model, first.shape[1])
    for i in range(0, len(first), rows):
        part = slice(i, i + rows)
        yield Batch(
            {name: value[part] for name, value in batch.inputs.items()},
            None if batch.mask is None else batch.mask[part],
            None if batch.labels is None else batch.labels[part],
        )


@dataclass(frozen=True)
class _Windows:
    """Rows for one forward pass. Logits at a position predict its target, if `counted` is set there."""

    inputs: dict[str, Tensor]
    targets: Tensor
    counted: Tensor


def _of_stream(model: nn.Module, ids: Tensor, window: int | None, stride: int | None) -> Iterator[_Windows]:
    if window is None:
        raise ValueError("a stream of tokens needs a `window`: how many tokens the model reads at once")
    stride = window if stride is None else stride
    if not 1 <= stride <= window:
        raise ValueError(f"stride {stride} is not in 1…{window} (the window), so tokens would be skipped")
    if ids.numel() < 2 or ids.numel() != ids.shape[-1]:
        raise ValueError(f"a stream is one row of 2 or more tokens, not {tuple(ids.shape)}; use batches for rows")
    stream = ids.flatten().long().to(device_of(model))
    last = len(stream) - 1
    width = min(window, last)
    ends = torch.tensor([*range(width, last, stride), last])  # index of the last token a window predicts
    fresh = ends.diff(prepend=torch.zeros_like(ends[:1]))  # how many of them no window before it predicted
    places = torch.arange(width)
    rows = _rows_that_fit(model, width)
    for end, new in zip(ends.split(rows), fresh.split(rows), strict=True):
        index = end[:, None] - width + places
        counted = (places >= width - new[:, None]).to(stream.device)
        yield _Windows({"input_ids": stream[index]}, stream[index + 1], counted)


def _of_batches(model: nn.Module, batches: Iterable[Batch]) -> Iterator[_Windows]:
    for batch in batches:
        for part in pieces(model, batch):
            ids = part.inputs["input_ids"].long()
            real = torch.ones_like(ids, dtype=torch.bool) if part.mask is None else part.mask
            # both the target and the token before it must be real: a left-padded row starts after its padding
            counted = torch.zeros_like(real)
            counted[:, :-1] = real[:, :-1] & real[:, 1:]
            yield _Windows(part.inputs, ids.roll(-1, dims=1), counted)


def _nll_of_rows(logits: Tensor, part: _Windows) -> Tensor:
    """Σ −log p(target) over the counted positions of every row, summed in float64."""
    total = torch.zeros(len(logits), dtype=torch.float64)
    row, position = part.counted.nonzero(as_tuple=True)
    for i, t in zip(row.split(POSITIONS), position.split(POSITIONS), strict=True):
        scores = logits[i, t].to(torch.promote_types(logits.dtype, torch.float32))
        nll = cross_entropy(scores, part.targets[i, t], reduction="none")
        total.index_add_(0, i.cpu(), nll.cpu().double())
    return total


def _rows_that_fit(model: nn.Module, length: int) -> int:
    head = getattr(model, "get_output_embeddings", lambda: None)()
    weight = getattr(head, "weight", None)
    if weight is None:  # no head over a vocabulary, so the outputs are small anyway
        return 2**31
    return max(1, LOGITS // (length * len(weight)))


def _summary(sums: list[float], counts: list[int]) -> Perplexity:
    tokens = sum(counts)
    if tokens == 0:
        raise ValueError("there is no token to predict: no rows, or fewer than 2 real tokens in each of them")
    nll = math.fsum(sums) / tokens
    if not math.isfinite(nll):
        raise NotFinite(f"the nll of {tokens} tokens is {nll}: the logits hold NaN or infinite values")
    used = [(total, n) for total, n in zip(sums, counts, strict=True) if n]
    ppl = float(torch.tensor(nll, dtype=torch.float64).exp())  # inf, not an OverflowError, beyond 709 nats
    return Perplexity(nll, ppl, tokens, tuple(total / n for total, n in used), tuple(n for _, n in used))

"""Perplexity of a causal language model: the only one in the package.

    nll = −(1/n) Σ log p(x_t | what the model read before x_t),   ppl = exp(nll),   n predicted tokens, nats

What counts depends on what is given.

A stream of tokens (one long tensor) is read through a window that moves on by `stride`. Every token but the
very first is predicted exactly once, after the first window from at least window − stride + 1 tokens:

    a b c d e f g h          window 4, stride 2
    a b c d                  predicts b c d e
        c d e f              predicts       f g
          d e f g            predicts           h     (the last window moves on by what is left)

Batches are taken as they are: every row on its own, its first real token not predicted, padding not counted, nor
tokens that only set documents apart: they are read, but they are no part of the text.
Of a source and its target (an encoder and a decoder) every token of the target is predicted, from the source and the
tokens of the target before it. Rows of 2048 packed tokens are the convention of the GPTQ line of papers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from slimformer.calibrate.text import SEPARATOR, Batch
from slimformer.errors import NotFinite
from slimformer.evaluate.units import Tally
from slimformer.models.outputs import at_once

LOGITS = 2**26  # logits one forward pass may return, unless a single row has more: 256 MB in float32


@dataclass(frozen=True)
class Perplexity:
    """`nll` is the mean over `tokens`, in nats. Windows that predict nothing are left out of the tuples.

    nll = Σ nll_per_window · tokens_per_window / tokens, and the same by document, the unit to estimate errors from.
    """

    nll: float
    ppl: float
    tokens: int
    nll_per_window: tuple[float, ...]
    tokens_per_window: tuple[int, ...]
    nll_per_document: tuple[float, ...]
    tokens_per_document: tuple[int, ...]


def perplexity(
    model: nn.Module, ids: Tensor | Iterable[Batch], *, window: int | None = None, stride: int | None = None
) -> Perplexity:
    """Perplexity on a stream of tokens (`stride` = `window` unless given), or on batches (give neither).

    Cost: one forward pass over the batches, or window / stride passes over the stream.
    """
    if not isinstance(ids, Tensor) and (window is not None or stride is not None):
        raise ValueError("batches are windows already; `window` and `stride` are for one long tensor")
    windows = _of_stream(model, ids, window, stride) if isinstance(ids, Tensor) else windows_of(model, ids)
    by_window, by_document = Tally(), Tally()
    with evaluating(model):
        for part in windows:
            counted = part.counted.cpu()
            nll = nll_of(model(**part.inputs).logits, part)
            columns = torch.stack([nll, torch.ones_like(nll)], 1)
            by_window.add(part.numbers[:, None].expand_as(counted)[counted], columns)
            by_document.add(part.documents[counted], columns)
    return summary_of(by_window.table(), by_document.table())


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
    rows = _rows_that_fit(model, max(first.shape[1], 0 if batch.mask is None else batch.mask.shape[1]))
    for i in range(0, len(first), rows):
        yield batch.rows(slice(i, i + rows))


@dataclass(frozen=True)
class Windows:
    """Rows for one forward pass. Logits at a position predict its target, if `counted` is set there.

    `numbers` are those of the rows, `documents` (rows × length) those the targets belong to.
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    counted: Tensor
    numbers: Tensor
    documents: Tensor


def _of_stream(model: nn.Module, ids: Tensor, window: int | None, stride: int | None) -> Iterator[Windows]:
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
    for numbers in torch.arange(len(ends)).split(rows):
        end, new = ends[numbers], fresh[numbers]
        index = end[:, None] - width + places
        counted = (places >= width - new[:, None]).to(stream.device)
        own = numbers[:, None].expand_as(counted)  # what is a document is not known of a stream
        yield Windows({"input_ids": stream[index]}, stream[index + 1], counted, numbers, own)


def windows_of(model: nn.Module, batches: Iterable[Batch]) -> Iterator[Windows]:
    """Rows of batches with what each position predicts, on the device of `model`."""
    seen, numbering = 0, Tally()
    for batch in batches:
        for part in pieces(model, batch):
            if part.targets is not None:
                yield _of_targets(part, part.targets, numbering)
                continue
            ids = part.inputs["input_ids"].long()
            numbers = torch.arange(seen, seen := seen + len(ids))
            documents = numbering.documents(part, ids.shape[1])
            real = torch.ones_like(ids, dtype=torch.bool) if part.mask is None else part.mask
            # both the target and the token before it must be real: a left-padded row starts after its padding
            counted = torch.zeros_like(real)
            counted[:, :-1] = real[:, :-1] & real[:, 1:]
            counted &= (documents != SEPARATOR).to(counted.device)
            yield Windows(part.inputs, ids.roll(-1, dims=1), counted, numbers, documents)


def _of_targets(part: Batch, targets: Tensor, numbering: Tally) -> Windows:
    """Targets of a decoder that looks at a source: every real one is predicted, from those before it."""
    counted = torch.ones_like(targets, dtype=torch.bool) if part.mask is None else part.mask
    documents = numbering.documents(part, targets.shape[1])
    return Windows(part.inputs, targets, counted, documents[:, 0], documents)


def nll_of(logits: Tensor, part: Windows) -> Tensor:
    """−log p(target) at every counted position, row after row, in float64."""
    row, position = part.counted.nonzero(as_tuple=True)
    parts, few = [torch.zeros(0, dtype=torch.float64)], at_once(logits)
    for i, t in zip(row.split(few), position.split(few), strict=True):
        scores = logits[i, t].to(torch.promote_types(logits.dtype, torch.float32))
        parts.append(cross_entropy(scores, part.targets[i, t], reduction="none").cpu().double())
    return torch.cat(parts)


def _rows_that_fit(model: nn.Module, length: int) -> int:
    head = getattr(model, "get_output_embeddings", lambda: None)()
    weight = getattr(head, "weight", None)
    if weight is None:  # no head over a vocabulary, so the outputs are small anyway
        return 2**31
    return max(1, LOGITS // (length * len(weight)))


def summary_of(by_window: Tensor, by_document: Tensor) -> Perplexity:
    """From Σ nll and the number of tokens of every window and of every document."""
    tokens = int(by_window[:, -1].sum())
    if tokens == 0:
        raise ValueError("there is no token to predict: no rows, or fewer than 2 real tokens in each of them")
    nll = math.fsum(by_window[:, 0].tolist()) / tokens
    if not math.isfinite(nll):
        raise NotFinite(f"the nll of {tokens} tokens is {nll}: the logits hold NaN or infinite values")
    ppl = float(torch.tensor(nll, dtype=torch.float64).exp())  # inf, not an OverflowError, beyond 709 nats
    means = [(tuple((sums / n).tolist()), tuple(n.long().tolist())) for sums, n in (by_window.T, by_document.T)]
    return Perplexity(nll, ppl, tokens, *means[0], *means[1])

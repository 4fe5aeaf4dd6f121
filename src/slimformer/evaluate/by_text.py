"""Two models that cut the same texts into different tokens: what can still be compared.

Positions do not match, so nothing is compared token by token. Of every text,

* a language model is asked for its bits:  −Σ log₂ p(x_t | x_<t) / bytes of the text, each with its own tokens;
* a classifier for its probabilities, a regression for its numbers;
* every other encoder for the mean of its last states.

The first token is predicted from the token that begins texts, or ends them, so that every byte is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from slimformer.calibrate.documents import Document
from slimformer.calibrate.gather import CHARACTERS, positions, vocabulary
from slimformer.calibrate.splits import cut_documents
from slimformer.calibrate.text import Batch, label_numbers, label_tensor, padded_batches
from slimformer.evaluate.compare import (
    Metric,
    bounds,
    classifies,
    clipped,
    compare,
    divergence_metrics,
    has_classes,
    is_language_model,
    regresses,
    turned,
)
from slimformer.evaluate.fidelity import compared, divergence_of, headless
from slimformer.evaluate.intervals import paired_difference, paired_shares, positive_interval
from slimformer.evaluate.perplexity import evaluating, perplexity, pieces
from slimformer.evaluate.units import Tally
from slimformer.models.families import family_of
from slimformer.models.load import Loaded

BITS = "bits per byte"
SHORT = CHARACTERS // 2  # characters per token that leave room for texts of rarer tokens
AT_ONCE = 8


def reads_alike(dense: Loaded, small: Loaded) -> bool:
    """Do two models know the same tokens, so that they can be given the same batches? As many, and no number is another
    token to the other."""
    if vocabulary(dense.model) != vocabulary(small.model):
        return False
    known = [each.processor.get_vocab() for each in (dense, small) if hasattr(each.processor, "get_vocab")]
    by_number = {number: token for token, number in known[0].items()} if len(known) == 2 else {}
    return all(by_number.get(number, token) == token for token, number in known[-1].items()) if by_number else True


def compare_pair(
    dense: Loaded, small: Loaded, batches: Sequence[Batch], texts: Sequence[Document], seq_len: int
) -> list[Metric]:
    """The metrics of two models on the same data: token by token where their tokens are the same, else by text."""
    if not reads_tokens(dense) or reads_alike(dense, small):
        return compare(dense.model, small.model, batches)
    return compare_texts(dense, small, texts, seq_len)


def reads_tokens(loaded: Loaded) -> bool:
    """Has the model a table of tokens?"""
    return family_of(loaded.model.config).unit == "tokens"


def compare_texts(dense: Loaded, small: Loaded, texts: Sequence[Document], seq_len: int) -> list[Metric]:
    """Bits per byte, or what two models say of whole texts. Cost: a pass of each model over the texts."""
    if is_language_model(dense.model):
        return [_bits(dense, small, texts, seq_len)]
    both = (dense.processor, small.processor)
    cut = cut_documents(texts, size=seq_len * CHARACTERS)
    passages = [each for each in cut if all(reader(each.text, verbose=False)["input_ids"] for reader in both)]
    units = torch.tensor([0 if each.number is None else each.number for each in passages])
    if not classifies(dense.model):
        x, y = (_rows(each, passages, seq_len, _pooled) for each in (dense, small))
        return [_cosine(cosine_similarity(x, y), units)]
    x, y = (_rows(each, passages, seq_len, _scores) for each in (dense, small))
    if regresses(dense.model):
        return [_change(x, y, units)]
    labels = label_tensor([each.label for each in passages], label_numbers(dense.model))
    right = [_accuracy(x, y, labels, units)] if labels is not None and has_classes(dense.model, labels) else []
    row, _, columns = compared(x[:, None], y[:, None], torch.ones(len(x), 1, dtype=torch.bool))
    return [*right, *divergence_metrics(divergence_of(_summed(units[row], columns)), None, dense.model)]


def _rows(loaded: Loaded, passages: Sequence[Document], seq_len: int, read: Callable[[Any, Batch], Tensor]) -> Tensor:
    """What a model says of every passage, in their order, in double precision."""
    apart = [replace(each, number=i) for i, each in enumerate(passages)]
    lone = loaded.model.config.pad_token_id is None
    batches = padded_batches(apart, loaded.processor, seq_len=seq_len, batch_size=1 if lone else AT_ONCE)
    rows: list[Tensor] = [torch.empty(0)] * len(passages)
    with evaluating(loaded.model):
        for batch in batches:
            for part in pieces(loaded.model, batch):
                assert part.documents is not None
                for number, row in zip(part.documents.tolist(), read(loaded.model, part).cpu().double(), strict=True):
                    rows[number] = row
    return torch.stack(rows)


def _pooled(model: Any, part: Batch) -> Tensor:
    states = headless(model)(**part.inputs).last_hidden_state
    assert part.mask is not None
    mask = part.mask.to(states)[..., None]
    pooled: Tensor = (states * mask).sum(1) / mask.sum(1)
    return pooled


def _scores(model: Any, part: Batch) -> Tensor:
    scores: Tensor = model(**part.inputs).logits
    return scores


def _summed(units: Tensor, columns: Tensor) -> Tensor:
    tally = Tally()
    tally.add(units, columns)
    return tally.table()


def _means(units: Tensor, values: Tensor) -> tuple[list[float], list[float]]:
    """Mean and number of values of every document."""
    total, count = _summed(units, torch.stack([values, torch.ones_like(values)], 1)).T
    return (total / count).tolist(), count.tolist()


def _cosine(cosines: Tensor, units: Tensor) -> Metric:
    means, counts = _means(units, cosines)
    apart = bounds(positive_interval, [max(0.0, 1 - each) for each in means], counts)
    low, high = turned(*clipped(apart, 0.0, 2.0))
    return Metric("cosine of pooled states", 1.0, float(cosines.mean()), "higher", low, high, documents=len(counts))


def _change(x: Tensor, y: Tensor, units: Tensor) -> Metric:
    moved, size = _summed(units, torch.stack([(x - y).square().sum(1), x.square().sum(1).clamp_min(1e-30)], 1)).T
    gap = bounds(positive_interval, (moved / size).tolist(), size.tolist())
    value = float(moved.sum() / size.sum())
    return Metric("relative squared change of the output", 0.0, value, "lower", *gap, documents=len(size))


def _accuracy(x: Tensor, y: Tensor, labels: Tensor, units: Tensor) -> Metric:
    right = [(scores.argmax(1) == labels).double() for scores in (x, y)]
    (before, n), (after, _) = (_means(units, each) for each in right)
    gap = bounds(partial(paired_shares, before), after, n)
    return Metric("accuracy", float(right[0].mean()), float(right[1].mean()), "higher", *gap, documents=len(n))


def _bits(dense: Loaded, small: Loaded, texts: Sequence[Document], seq_len: int) -> Metric:
    room = min(positions(each.model.config) for each in (dense, small)) - 1
    passages = [
        replace(each, text=text)
        for each in cut_documents(texts, size=seq_len * SHORT)
        for text in _fitting(each.text, (dense, small), room)
    ]
    sizes: dict[int, int] = {}
    for each in passages:
        sizes[each.number or 0] = sizes.get(each.number or 0, 0) + len(each.text.encode())
    bytes_read = [sizes[number] for number in sorted(sizes)]
    before, after = (_bits_of(each, passages) for each in (dense, small))
    rates = [[bits / n for bits, n in zip(each, bytes_read, strict=True)] for each in (before, after)]
    gap = bounds(partial(paired_difference, rates[0]), rates[1], bytes_read)
    values = [math.fsum(each) / sum(bytes_read) for each in (before, after)]
    return Metric(BITS, values[0], values[1], "lower", *gap, documents=len(bytes_read))


def _fitting(text: str, readers: Sequence[Loaded], room: int) -> Iterator[str]:
    """The text in parts that fit into every model."""
    counts = [len(each.processor(text, add_special_tokens=False, verbose=False)["input_ids"]) for each in readers]
    if max(counts) > room and len(text) > 1:
        middle = len(text) // 2
        yield from _fitting(text[:middle], readers, room)
        yield from _fitting(text[middle:], readers, room)
    elif min(counts) > 1:  # a single one predicts nothing
        yield text


def _bits_of(loaded: Loaded, passages: Sequence[Document]) -> list[float]:
    """The bits of every document, in the order of their numbers."""
    tokenizer = loaded.processor
    start = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
    found = tokenizer([each.text for each in passages], add_special_tokens=False, verbose=False)["input_ids"]
    rows = sorted(
        (([] if start is None else [start]) + ids, each.number or 0) for ids, each in zip(found, passages, strict=True)
    )
    rows.sort(key=lambda row: len(row[0]))
    batches = [_batch(rows[i : i + AT_ONCE]) for i in range(0, len(rows), AT_ONCE)]
    result = perplexity(loaded.model, batches)
    return [nll * n / math.log(2) for nll, n in zip(result.nll_per_document, result.tokens_per_document, strict=True)]


def _batch(rows: Sequence[tuple[list[int], int]]) -> Batch:
    """Rows padded on the right, whatever the tokenizer does: positions count from the first token."""
    length = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([each + [each[-1]] * (length - len(each)) for each, _ in rows])
    mask = torch.arange(length) < torch.tensor([[len(each)] for each, _ in rows])
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    return Batch(inputs, mask, documents=torch.tensor([number for _, number in rows]))

"""Documents to batches of tokens.

Causal language models get windows without padding, cut from the documents of one split laid end to end;
encoders and classifiers get one document, or one pair, per row. Every limit counts real tokens.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimformer.calibrate.documents import Document, Label
from slimformer.errors import DataUnreadable
from slimformer.models.batch import ROWWISE
from slimformer.models.batch import Batch as Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

POSITIONS = 2048  # of a batch of short rows: work of one size, whatever their length
LIKE = 0.9  # as long as the longest of their batch, rows are alike
ENCODED_AT_ONCE = 64  # documents per call of the tokenizer: few enough to stop early, enough to be fast
SEPARATOR = -1  # the document of tokens that set documents apart: they are of no text
CHARACTERS_PER_TOKEN = 64  # no text has longer tokens on average; what lies beyond is not even tokenized


_Token = tuple[int, int]  # its id, and the number of its document


def packed_batches(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    *,
    seq_len: int,
    tokens: int | None = None,
    batch_size: int = 8,
) -> list[Batch]:
    """Windows of `seq_len` tokens over the documents laid end to end; no padding.

    Documents are set apart by the special tokens the tokenizer adds itself (`<s>` for LLaMA), else by the end
    of text. A last short window is dropped, unless it is the only one. Give documents of one split only.
    """
    stream = torch.tensor(list(islice(_stream(documents, tokenizer, tokens), tokens)), dtype=torch.long).view(-1, 2)
    length = min(seq_len, len(stream))
    if length == 0:
        return []
    count = len(stream) // length
    ids, numbers = stream[: count * length].view(count, length, 2).unbind(-1)
    batches = token_batches(ids, batch_size=batch_size)
    return [replace(batch, documents=part) for batch, part in zip(batches, numbers.split(batch_size), strict=True)]


def padded_batches(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    *,
    seq_len: int,
    tokens: int | None = None,
    batch_size: int = 8,
    label_ids: Mapping[str, int] | None = None,
) -> list[Batch]:
    """One document or pair per row, truncated to `seq_len`; rows of like length together, to pad little.

    A batch has `batch_size` rows, or more of short ones, up to `POSITIONS` (where one row is asked for, one). The
    batches are then shuffled (always alike): whoever takes only the first must not get only short texts.
    Labels that are names become numbers by `label_ids` (the model's `label2id`); without it, or where one is
    missing, there are none.
    """
    rows = sorted(_rows(documents, tokenizer, seq_len, tokens), key=len)  # the longest are taken first
    parts: list[list[_Row]] = []
    while rows:
        longest = len(rows[-1])
        alike = sum(len(row) >= LIKE * longest for row in rows[-max(1, POSITIONS // longest) :])
        size = 1 if batch_size == 1 else max(batch_size, alike)
        parts.append(rows[-size:])
        del rows[-size:]
    random.Random(0).shuffle(parts)
    return [_pad(part, tokenizer, label_ids) for part in parts]


def unread(
    documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase, *, tokens: int, seq_len: int | None = None
) -> list[Document]:
    """The documents that are beyond the first `tokens`: no batch of that limit holds any of them.

    For windows a document counts whole, for rows up to `seq_len`; separators and the parts a long document is cut into
    are left out, which can only make it appear shorter than it was, so that more documents count as read.
    """
    used = 0
    for start in range(0, len(documents), ENCODED_AT_ONCE):
        part = documents[start : start + ENCODED_AT_ONCE]
        most = (seq_len or tokens) * CHARACTERS_PER_TOKEN
        encoded = tokenizer([d.text[:most] for d in part], add_special_tokens=False, verbose=False)["input_ids"]
        for i, ids in enumerate(encoded):
            if used >= tokens:
                return list(documents[start + i :])
            used += min(len(ids), seq_len or len(ids))
    return []


def in_turn(batches: Sequence[Batch]) -> list[Batch]:
    """The same windows dealt to as many batches in turn: whoever reads the first gets a sample of all documents."""
    if len(batches) < 2:
        return list(batches)
    inputs = {name: torch.cat([batch.inputs[name] for batch in batches]) for name in batches[0].inputs}
    whole = {name: [getattr(batch, name) for batch in batches] for name in ROWWISE}
    rest = {name: None if any(x is None for x in each) else torch.cat(each) for name, each in whole.items()}
    return [Batch(inputs, **rest).rows(slice(start, None, len(batches))) for start in range(len(batches))]


def token_batches(ids: Tensor, batch_size: int = 8) -> list[Batch]:
    """Batches straight from token ids (sequences × length): for models without a tokenizer."""
    if ids.ndim != 2 or ids.is_floating_point():
        raise DataUnreadable(f"token ids must be integers, sequences × length; got {ids.dtype} {tuple(ids.shape)}")
    return [
        Batch(
            {"input_ids": part, "attention_mask": torch.ones_like(part)},
            torch.ones_like(part, dtype=torch.bool),
        )
        for part in ids.long().split(batch_size)
        if part.numel()
    ]


def label_numbers(model: PreTrainedModel) -> dict[str, int]:
    """The numbers of named labels."""
    return {str(name): int(i) for name, i in (getattr(model.config, "label2id", None) or {}).items()}


def label_tensor(labels: Sequence[Label], label_ids: Mapping[str, int] | None = None) -> Tensor | None:
    """Classes as integers, scores as floats; None where a label is missing or is a name without a number."""
    values = [(label_ids or {}).get(label) if isinstance(label, str) else label for label in labels]
    if not values or any(value is None for value in values):
        return None
    whole = all(isinstance(value, int) for value in values)
    return torch.tensor(values, dtype=torch.long if whole else torch.float32)


def data_hash(documents: Iterable[Document]) -> str:
    """SHA-256 over the texts, whatever their order: the same data give the same hash. Images: their paths and bytes."""
    each = sorted(hashlib.sha256(repr((d.text, d.pair, d.group)).encode()).digest() for d in documents)
    return hashlib.sha256(b"".join(each)).hexdigest()


def _stream(documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase, tokens: int | None) -> Iterator[_Token]:
    apart: list[int] = []
    if tokenizer.num_special_tokens_to_add() == 0:
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.bos_token_id
        apart = [] if end is None else [end]
    waiting = enumerate(documents)
    while part := list(islice(waiting, ENCODED_AT_ONCE)):
        texts = [d.text if d.pair is None else f"{d.text}\n{d.pair}" for _, d in part]
        texts = [text if tokens is None else text[: tokens * CHARACTERS_PER_TOKEN] for text in texts]
        # verbose=False: windows are cut here, so a document beyond the model's length is no reason to warn
        encoded = tokenizer(texts, verbose=False, return_special_tokens_mask=True)
        for (i, document), ids, added in zip(part, encoded["input_ids"], encoded["special_tokens_mask"], strict=True):
            number = i if document.number is None else document.number
            yield from ((token, SEPARATOR if extra else number) for token, extra in zip(ids, added, strict=True))
            yield from ((token, SEPARATOR) for token in apart)


@dataclass(frozen=True)
class _Row:
    fields: dict[str, list[int]]
    label: Label
    document: int

    def __len__(self) -> int:
        return len(self.fields["input_ids"])


def _rows(
    documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase, seq_len: int, tokens: int | None
) -> list[_Row]:
    """Rows in the order of the documents while they fit; sorting comes later, or short texts would win."""
    left = float("inf") if tokens is None else tokens
    rows: list[_Row] = []
    for row in _encoded(documents, tokenizer, seq_len if tokens is None else min(seq_len, tokens)):
        left -= len(row)
        if left < 0:
            break
        rows.append(row)
    return rows


def _encoded(documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase, seq_len: int) -> Iterator[_Row]:
    waiting = enumerate(documents)
    while part := list(islice(waiting, ENCODED_AT_ONCE)):
        for paired, group in groupby(part, key=lambda numbered: numbered[1].pair is not None):
            alike = list(group)
            texts = [_clip(document.text, seq_len, tokenizer) for _, document in alike]
            pairs = [_clip(document.pair or "", seq_len, tokenizer) for _, document in alike] if paired else None
            encoding = tokenizer(texts, pairs, truncation=True, max_length=seq_len)
            for i, (order, document) in enumerate(alike):
                number = order if document.number is None else document.number
                row = _Row({name: encoding[name][i] for name in encoding}, document.label, number)
                if len(row):
                    yield row


def _clip(text: str, seq_len: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """An endless text costs no more than a long one: what truncation is sure to drop is dropped before."""
    most = seq_len * CHARACTERS_PER_TOKEN
    return text[-most:] if tokenizer.truncation_side == "left" else text[:most]


def _pad(rows: Sequence[_Row], tokenizer: PreTrainedTokenizerBase, label_ids: Mapping[str, int] | None) -> Batch:
    length = max(map(len, rows))
    # any id will do where there is no padding token: the mask keeps it out
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    filler: dict[str, Any] = {
        "input_ids": next(i for i in ids if i is not None),
        "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0),
    }
    left = tokenizer.padding_side == "left"

    def padded(name: str, values: list[int]) -> list[int]:
        padding = [filler.get(name, 0)] * (length - len(values))
        return padding + values if left else values + padding

    inputs = {name: torch.tensor([padded(name, row.fields[name]) for row in rows]) for name in rows[0].fields}
    mask = torch.tensor([padded("mask", [1] * len(row)) for row in rows], dtype=torch.bool)
    inputs["attention_mask"] = mask.long()
    numbers = torch.tensor([row.document for row in rows])
    return Batch(inputs, mask, label_tensor([row.label for row in rows], label_ids), numbers)

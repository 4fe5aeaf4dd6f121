"""From start and end scores of tokens to a text of the context.

A context that does not fit is read in parts that overlap by `stride` tokens, each with the whole question in front
(Devlin et al. 2019). An answer is a pair of tokens start ≤ end < start + `longest` in one part; its score is the sum of
the two logits. Only the `n_best` best starts and ends of a part are combined, as is usual. The text is cut out of the
context as it is written there. The null answer scores start + end at the first token ([CLS]), and of several parts the
lowest counts: one part that is sure to hold an answer is enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimformer.errors import DataUnreadable, SequenceTooLong
from slimformer.evaluate.perplexity import device_of, evaluating
from slimformer.evaluate.squad import Answer, Question
from slimformer.messages.words import option

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """How contexts are read and answers found."""

    seq_len: int = 384
    stride: int = 128
    longest: int = 30
    n_best: int = 20
    batch_size: int = 16


@dataclass(frozen=True)
class Part:
    """One row for the model. `places` are (from, to) characters of the context by token, none outside the context."""

    question: int
    fields: dict[str, list[int]]
    places: tuple[tuple[int, int] | None, ...]
    null: int  # the token whose scores stand for "no answer"


@dataclass(frozen=True)
class Span:
    """A candidate: characters of the context, and the sum of its two logits."""

    start: int
    end: int
    score: float


def answer_questions(
    model: nn.Module, tokenizer: Any, questions: Sequence[Question], how: Reading | None = None
) -> dict[str, Answer]:
    """The best answer to every question, with its null score. Cost: one forward pass over all parts."""
    how = how or Reading()
    parts = parts_of(questions, tokenizer, how)
    spans: list[list[Span]] = [[] for _ in questions]
    nulls = [math.inf] * len(questions)
    for part, start, end in _scored(model, tokenizer, parts, how.batch_size):
        spans[part.question] += best_spans(part, start, end, how)
        nulls[part.question] = min(nulls[part.question], float(start[part.null] + end[part.null]))
    return {q.id: _answer(q, best, null) for q, best, null in zip(questions, spans, nulls, strict=True)}


def parts_of(questions: Sequence[Question], tokenizer: Any, how: Reading) -> list[Part]:
    """Rows of at most `seq_len` tokens; every token of a context is in one of them."""
    if not getattr(tokenizer, "is_fast", False):
        raise DataUnreadable("marking answers needs a fast tokenizer, which knows where in the text a token stands")
    stems = [question.question.lstrip() for question in questions]  # some tokenizers cut after spaces in front
    longest = max((len(ids) for ids in tokenizer(stems)["input_ids"]), default=0)
    room = how.seq_len - longest - tokenizer.num_special_tokens_to_add(pair=True)
    if room <= how.stride:
        raise SequenceTooLong(
            f"a question of {longest} tokens and a stride of {how.stride} leave no room in {how.seq_len}; "
            f"raise {option('seq_len')} or lower {option('stride')}"
        )
    encoding = tokenizer(
        stems, [question.context for question in questions], truncation="only_second", max_length=how.seq_len,
        stride=how.stride, return_overflowing_tokens=True, return_offsets_mapping=True, verbose=False,
    )  # fmt: skip
    owners, offsets = encoding.pop("overflow_to_sample_mapping"), encoding.pop("offset_mapping")
    return [
        _part(owner, {name: encoding[name][i] for name in encoding}, offsets[i], encoding.sequence_ids(i), tokenizer)
        for i, owner in enumerate(owners)
    ]


def _part(owner: int, fields: dict[str, list[int]], offsets: Any, sides: Sequence[int | None], tokenizer: Any) -> Part:
    places = tuple((a, b) if side == 1 and b > a else None for (a, b), side in zip(offsets, sides, strict=True))
    ids, first = fields["input_ids"], tokenizer.cls_token_id
    return Part(owner, fields, places, ids.index(first) if first in ids else 0)


def best_spans(part: Part, start: Scores, end: Scores, how: Reading) -> list[Span]:
    """The `n_best` best legal pairs of the best starts and ends of one part, the best first."""
    legal = np.array([place is not None for place in part.places])
    firsts, lasts = (_highest(np.where(legal, scores, -np.inf), how.n_best) for scores in (start, end))
    lengths = lasts[None, :] - firsts[:, None]
    fits = (lengths >= 0) & (lengths < how.longest) & legal[firsts][:, None] & legal[lasts][None, :]
    sums = np.where(fits, start[firsts][:, None] + end[lasts][None, :], -np.inf)
    candidates = []
    for flat in _highest(sums.ravel(), how.n_best):
        i, j = np.unravel_index(flat, sums.shape)
        first, last = part.places[firsts[i]], part.places[lasts[j]]
        if fits[i, j] and first and last:
            candidates.append(Span(first[0], last[1], float(sums[i, j])))
    return candidates


def _highest(scores: Scores, n: int) -> NDArray[np.int64]:
    """Indices of the n highest, the highest first; of equals the earlier one."""
    order: NDArray[np.int64] = np.argsort(-scores, kind="stable")[:n]
    return order


def _answer(question: Question, spans: Sequence[Span], null: float) -> Answer:
    if not spans:
        return Answer("", math.inf)
    best = max(spans, key=lambda span: span.score)
    return Answer(question.context[best.start : best.end], null - best.score)


def _scored(
    model: nn.Module, tokenizer: Any, parts: Sequence[Part], batch_size: int
) -> Iterator[tuple[Part, Scores, Scores]]:
    """Every part with its start and end logits; parts of like length share a batch."""
    order = sorted(parts, key=lambda part: len(part.places))
    device = device_of(model)
    with evaluating(model):
        for i in range(0, len(order), batch_size):
            rows = order[i : i + batch_size]
            batch = {name: value.to(device) for name, value in _padded(rows, tokenizer).items()}
            out = model(**batch)
            starts, ends = (logits.to("cpu", torch.float64).numpy() for logits in (out.start_logits, out.end_logits))
            for row, part in enumerate(rows):
                n = len(part.places)
                yield part, starts[row, :n], ends[row, :n]


def _padded(rows: Sequence[Part], tokenizer: Any) -> dict[str, Tensor]:
    """Rows of one length, padding at the right whatever the tokenizer prefers: places count from the left."""
    length = max(len(part.places) for part in rows)
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    filler = {"input_ids": next(i for i in ids if i is not None)}
    out = {
        name: torch.tensor([part.fields[name] + [filler.get(name, 0)] * (length - len(part.places)) for part in rows])
        for name in rows[0].fields
    }
    out["attention_mask"] = (torch.arange(length) < torch.tensor([[len(part.places)] for part in rows])).long()
    return out

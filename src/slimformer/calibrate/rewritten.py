"""How tokens that are gone are written now: two tokenizers on the same texts, matched by the characters they cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from slimformer.calibrate.document import Document

AT_ONCE = 256  # texts per call of the tokenizers
Offsets = list[tuple[int, int]]


@dataclass(frozen=True)
class Rewritten:
    """How often a token became such and such pieces in a text, and how often each token of the new kind occurs."""

    words: Counter[tuple[int, tuple[int, ...]]] = field(default_factory=Counter)
    pieces: Counter[int] = field(default_factory=Counter)


def rewritten(documents: Iterable[Document], dense: Any, small: Any, stay: Iterable[int]) -> Rewritten:
    """Of every token of `dense` that does not stay, the pieces `small` writes in its place, as these texts have them.

    Where pieces cross the edges of the token (BPE may merge anew) no pieces stand for it, and it is left out.
    """
    known, result = set(stay), Rewritten()
    texts = (text for document in documents for text in (document.text, document.pair) if text)
    while part := list(islice(texts, AT_ONCE)):
        before, after = (
            each(part, add_special_tokens=False, return_offsets_mapping=True, verbose=False) for each in (dense, small)
        )
        for i in range(len(part)):
            result.pieces.update(after["input_ids"][i])
            pairs = _matched(before["offset_mapping"][i], after["offset_mapping"][i])
            for token, places in zip(before["input_ids"][i], pairs, strict=True):
                if token not in known and places:
                    result.words[token, tuple(after["input_ids"][i][j] for j in places)] += 1
    return result


def _matched(before: Offsets, after: Offsets) -> Iterator[range]:
    """For each span of the first cut the spans of the second that make it up; none where they do not."""
    j = 0
    for start, end in before:
        while j < len(after) and after[j][0] < start:
            j += 1
        k = j
        while k < len(after) and after[k][1] <= end and after[k][0] >= start:
            k += 1
        whole = k > j and start < end and (after[j][0], after[k - 1][1]) == (start, end)
        yield range(j, k) if whole else range(0)
        j = k

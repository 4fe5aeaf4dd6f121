"""Which tokens of a vocabulary stay: what must, then the most frequent ones of a text, each with what it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass

from slimformer.errors import BudgetOutOfReach
from slimformer.messages.words import option


@dataclass(frozen=True)
class Wanted:
    """So many tokens, or as few as cover a share of a text; rounded up to a multiple, as kernels like it."""

    keep: int | None = None
    cover: float | None = None
    multiple_of: int = 1

    def rounded(self, tokens: int, known: Sized) -> int:
        """So many tokens, or the next multiple, or all that are known."""
        return min(len(known), math.ceil(tokens / self.multiple_of) * self.multiple_of)


def choose_tokens(
    counts: Mapping[int, int], always: Iterable[int], parts: Callable[[int], tuple[int, ...]], wanted: Wanted
) -> list[int]:
    """The numbers of the tokens that stay, ascending.

    `counts` says of every token how often it occurs, `parts` what one is merged from. Tokens are taken by frequency (of
    equal ones the first in `counts`), each with what it is made of, while they fit. Cost: a sort.
    """
    stay: set[int] = set()
    for token in always:
        stay |= _with_parts(token, parts, stay)
    _require_possible(wanted, least=len(stay), most=len(counts))
    total, room = sum(counts.values()), len(counts) if wanted.keep is None else wanted.rounded(wanted.keep, counts)
    seen, reached = sum(counts[token] for token in stay), False
    for token in sorted(counts, key=lambda token: -counts[token]):
        if wanted.cover is not None and not reached and seen >= wanted.cover * total:
            room, reached = wanted.rounded(len(stay), counts), True
        if len(stay) == room:
            break
        new = _with_parts(token, parts, stay)
        if len(stay) + len(new) <= room:
            stay |= new
            seen += sum(counts[each] for each in new)
    return sorted(stay)


def covered(counts: Mapping[int, int], stay: Iterable[int]) -> float:
    """The share of a text whose tokens stay; all of a text without tokens."""
    total = sum(counts.values())
    return sum(counts[token] for token in stay) / total if total else 1.0


def _with_parts(token: int, parts: Callable[[int], tuple[int, ...]], stay: set[int]) -> set[int]:
    """A token and all it is made of, without what stays already."""
    new: set[int] = set()
    waiting = [token]
    while waiting:
        each = waiting.pop()
        if each not in stay and each not in new:
            new.add(each)
            waiting += parts(each)
    return new


def _require_possible(wanted: Wanted, *, least: int, most: int) -> None:
    if wanted.keep is None:
        return
    if wanted.keep > most:
        raise BudgetOutOfReach(f"{option('vocab', wanted.keep)}: the vocabulary has {most:,} tokens; give fewer")
    if wanted.keep < least:
        raise BudgetOutOfReach(
            f"{option('vocab', wanted.keep)}: special tokens, bytes and characters alone are {least:,}, and without "
            f"them not every text could be written; give {least} or more"
        )

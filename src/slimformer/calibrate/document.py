"""A document, and how documents of several sources are mixed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

Label = int | float | str | None


@dataclass(frozen=True)
class Document:
    """One text, or a pair of texts, that stays whole; documents of one `group` stay together as well.

    `number` says which documents count as one draw when the error of a measurement is estimated.
    """

    text: str
    pair: str | None = None
    label: Label = None
    group: str | None = None
    source: str | None = None  # what it was drawn from: a source of the built-in text
    number: int | None = field(default=None, repr=False, compare=False)


def mix_documents(sources: Sequence[list[Document]], weights: Sequence[float] | None = None) -> list[Document]:
    """Draw from the sources in turn, whichever has given the fewest characters, until one is used up.

    So no source outweighs another, however long its documents are, unless by its weight: one of weight 3 gives three
    characters for every one of a source of weight 1. Each is shuffled first (always alike),
    because files are often sorted and only the beginning of a larger one is used.
    """
    if len(sources) < 2:
        return list(sources[0]) if sources else []
    left = [random.Random(0).sample(documents, len(documents)) for documents in sources]
    given, each = [0.0] * len(sources), weights or [1.0] * len(sources)
    mixed: list[Document] = []
    while all(left):
        turn = given.index(min(given))
        mixed.append(left[turn].pop())
        given[turn] += (len(mixed[-1].text) + len(mixed[-1].pair or "")) / each[turn]
    return mixed

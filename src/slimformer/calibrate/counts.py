"""How often every token occurs: in batches that were read, or in as much text as one likes, streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from slimformer.calibrate.builtin import BUILTIN
from slimformer.calibrate.documents import Document, source_names
from slimformer.calibrate.stream import stream_documents
from slimformer.calibrate.text import Batch

AT_ONCE = 256  # documents per call of the tokenizer


def tokens_in_batches(batches: Iterable[Batch]) -> Counter[int]:
    """Of real positions."""
    counts: Counter[int] = Counter()
    for batch in batches:
        ids = batch.inputs["input_ids"]
        counts.update((ids.flatten() if batch.mask is None else ids[batch.mask]).tolist())
    return counts


def tokens_in_texts(documents: Iterable[Document], tokenizer: Any) -> Counter[int]:
    """Of texts, without the tokens that are put around them. Only a few texts are in memory at a time."""
    counts: Counter[int] = Counter()
    for numbers in encoded(documents, tokenizer):
        counts.update(numbers)
    return counts


def encoded(documents: Iterable[Document], tokenizer: Any) -> Iterator[list[int]]:
    """The tokens of every text, and of the other text where there are pairs."""
    texts = (text for document in documents for text in (document.text, document.pair) if text)
    while part := list(islice(texts, AT_ONCE)):
        yield from tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]


def documents_of(source: str | Path, columns: Sequence[str] | None = None) -> Iterator[Document]:
    """The documents of one or several sources (by commas), one after the other; tables are read row by row."""
    for name in source_names(str(source)):
        yield from stream_documents(name, columns=None if name == BUILTIN else columns)

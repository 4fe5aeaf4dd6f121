"""Broad text beside a user's own: fitted a little, chosen on, and measured on.

Least squares on a narrow text may ruin every direction that text does not show. So half as much broad text again is
fitted beside the user's own, and the split on which everything is chosen (sizes, ranks, corrections) gets text of
sources that nobody fitted. Some more sources are only measured on: they say what a cut does to other text.
docs/calibration-data.md has what that gains and costs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from slimformer.calibrate.builtin import TEXT_KINDS, Role, builtin_documents
from slimformer.calibrate.document import Document, mix_documents
from slimformer.calibrate.splits import cut_documents
from slimformer.calibrate.text import Batch, token_batches

FIT_SHARE = 0.5  # tokens of broad text to fit on, for every token of the user's own
SELECT_SHARE = 0.5  # the same for the split that choices are made on
OTHER_SHARE = 1 / 16  # the same for every source that is only measured on
PIECES, LEAST_PIECE = 24, 120  # of one such source, each of another document; characters
SENTENCE = re.compile(r"(?<=[.!?;:])\s")
LONG_SENTENCE = 60  # characters


def everything(_: Document) -> bool:
    """Leave nothing out."""
    return True


def broad_documents(role: Role, *, rows: bool, allowed: Callable[[Document], bool] = everything) -> list[Document]:
    """Built-in text of every kind in equal shares; for models that read rows, half of it single sentences."""
    passages = builtin_documents(TEXT_KINDS, role, allowed=allowed)
    sentences = builtin_documents(("sentences",), role, allowed=allowed) if rows else []
    return mix_documents([part for part in (passages, sentences) if part])


def other_documents(*, rows: bool, allowed: Callable[[Document], bool] = everything) -> dict[str, list[Document]]:
    """Sources that are neither fitted nor chosen on, by name."""
    by_source: dict[str, list[Document]] = {}
    for document in broad_documents("other", rows=rows, allowed=allowed):
        by_source.setdefault(str(document.source), []).append(document)
    return by_source


def pieces_of(documents: Sequence[Document], *, characters: int) -> list[Document]:
    """A passage of every document, so short that some `PIECES` of them make up these characters: documents, not tokens,
    are what an interval rests on."""
    size = max(LEAST_PIECE, characters // PIECES)
    drawn = random.Random(0)
    passages = (drawn.choice(cut_documents([document], size=size)) for document in documents)
    return [replace(passage, text=passage.text[: 2 * size], number=i) for i, passage in enumerate(passages)]


def shares_nothing_with(documents: Iterable[Document]) -> Callable[[Document], bool]:
    """Whether a document shares no long sentence with these, however its lines are broken. Cost: reading them once."""
    known = {each for document in documents for each in _long_sentences(document)}
    return lambda document: known.isdisjoint(_long_sentences(document))


def _long_sentences(document: Document) -> set[str]:
    """Sentences that no two texts have by chance; a text without any is one."""
    text = " ".join(f"{document.text} {document.pair or ''}".lower().split())
    return {each for each in SENTENCE.split(text) if len(each) >= LONG_SENTENCE} or {text}


def shuffled(parts: Sequence[Sequence[Batch]], *, seed: int, batch_size: int) -> list[Batch]:
    """The batches of several texts as one list in which each is met early: whoever reads the beginning reads all.

    Windows of one length are dealt one by one; rows, which are padded together, stay in their batches.
    """
    batches = [batch for part in parts for batch in part]
    generator = torch.Generator().manual_seed(seed)
    if batches and _are_windows(batches):
        rows = torch.cat([batch.inputs["input_ids"] for batch in batches])
        return token_batches(rows[torch.randperm(len(rows), generator=generator)], batch_size)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _are_windows(batches: Sequence[Batch]) -> bool:
    lengths = {batch.inputs["input_ids"].shape[1] for batch in batches}
    plain = all(batch.labels is None and set(batch.inputs) == {"input_ids", "attention_mask"} for batch in batches)
    return plain and len(lengths) == 1 and all(batch.mask is None or bool(batch.mask.all()) for batch in batches)

"""Four document-disjoint splits.

*fit* gives the moments, *select* the choices, *report* the numbers that are printed, *certify* is opened
last. Nothing chosen on a split is reported on it, and that is worth nothing if a text is in two of them.
So documents are dealt in groups that share a text, never one by one.
"""

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from slimformer.calibrate.documents import Document
from slimformer.errors import DataEmpty, TooFewTokens

SPLITS = ("fit", "select", "report", "certify")
SHARES = (0.55, 0.2, 0.15, 0.10)

PARAGRAPH = re.compile(r"\n\s*\n")
SENTENCE = re.compile(r"\n\s*|(?<=[.!?])\s+|(?<=[。！？])")
PIECES = 20  # enough to come close to the shares, few enough to leave passages long


def split_documents(
    documents: Iterable[Document], *, seed: int, shares: Sequence[float] = SHARES
) -> dict[str, list[Document]]:
    """Deal the documents to the splits, by characters in the given shares; every split gets at least one.

    Documents with the same text, up to white space, go together; so do documents of one group, and pairs that
    have a side in common (the three hypotheses to one premise). The result depends on the seed and on what
    the documents say, not on their order. Fewer than four distinct texts are first cut, at paragraphs or else
    at sentences, into passages that are then dealt like documents.
    """
    known = list(documents)
    if not known:
        raise DataEmpty("there are no documents to split; give data with at least one")
    groups = _groups(known)
    if len(groups) < len(SPLITS):
        groups = _groups(cut_documents(known, size=sum(len(d.text) for d in known) // PIECES))
    if len(groups) < len(SPLITS):
        raise TooFewTokens(
            f"{', '.join(SPLITS)} need a text each, and the data have {len(groups)} that can be told apart; "
            f"give at least {len(SPLITS)} documents, or a longer text"
        )
    random.Random(seed).shuffle(groups)
    return _deal(groups, shares)


def cut_documents(documents: Iterable[Document], *, size: int) -> list[Document]:
    """Passages of `size` characters or a little more, cut at paragraphs, or at sentences if these are long.

    Pairs, grouped and labelled documents stay whole: a label says nothing about a part. Within a split this
    also turns articles into many rows for an encoder, which would otherwise see their first lines only.
    """
    return [passage for document in documents for passage in _passages(document, size)]


def numbered(splits: dict[str, list[Document]]) -> dict[str, list[Document]]:
    """The same with a number for each document, one for all that share a text or a group, in whatever split."""
    everything = [document for part in splits.values() for document in part]
    number = {document: i for i, group in enumerate(_groups(everything)) for document in group}
    return {split: [replace(d, number=number[d]) for d in part] for split, part in splits.items()}


def one_of_each(documents: Iterable[Document]) -> list[Document]:
    """One document of every group that shares a text: what is left can be taken for independent draws."""
    return [min(group, key=lambda document: _digest(repr(document))) for group in _groups(list(documents))]


def _deal(groups: list[list[Document]], shares: Sequence[float]) -> dict[str, list[Document]]:
    """Each group to the split that has most room; the last groups to splits that have none."""
    if len(shares) != len(SPLITS) or min(shares) <= 0:
        raise ValueError(f"shares must be {len(SPLITS)} positive numbers, got {shares}")
    sizes = [sum(len(d.text) + len(d.pair or "") for d in group) for group in groups]
    room = {name: sum(sizes) * share / sum(shares) for name, share in zip(SPLITS, shares, strict=True)}
    splits: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for i, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        empty = [name for name in SPLITS if not splits[name]]
        candidates = empty if len(groups) - i <= len(empty) else SPLITS
        name = max(candidates, key=room.__getitem__)
        splits[name].extend(group)
        room[name] -= size
    return splits


def _groups(documents: Sequence[Document]) -> list[list[Document]]:
    """Connected components of "shares a text or a group with", in an order that depends on content only."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    keys = _keys(documents)
    for first, *others in keys:
        for other in others:
            parent[root(other)] = root(first)
    members: dict[str, list[Document]] = defaultdict(list)
    for document, (first, *_) in zip(documents, keys, strict=True):
        members[root(first)].append(document)
    groups = [sorted(group, key=repr) for group in members.values()]
    return sorted(groups, key=lambda group: _digest(repr(group[0])))


def _keys(documents: Sequence[Document]) -> list[list[str]]:
    """For every document the keys it may share with others; the first is its own content."""
    sides = [[_digest(text) for text in (d.text, d.pair) if text] for d in documents]
    count = Counter(side for own in sides for side in set(own))
    # a side this frequent is a template ("Is this true?"), and would tie all documents into one
    template = max(20, len(documents) // 10)
    keys = []
    for document, own in zip(documents, sides, strict=True):
        shared = [side for side in own if count[side] <= template]
        group = [] if document.group is None else [f"group {document.group}"]
        keys.append(["+".join(own), *shared, *group])
    return keys


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode(errors="surrogatepass")).hexdigest()


def _passages(document: Document, size: int) -> Iterator[Document]:
    if document.pair is not None or document.group is not None or document.label is not None:
        yield document
        return
    for paragraphs in _pieces(document.text, PARAGRAPH, size):
        pieces = _pieces(paragraphs, SENTENCE, size) if len(paragraphs) > 2 * size else [paragraphs]
        yield from (replace(document, text=piece) for piece in pieces)


def _pieces(text: str, boundary: re.Pattern[str], size: int) -> list[str]:
    pieces, start = [], 0
    for match in boundary.finditer(text):
        if match.start() - start >= size:
            pieces.append(text[start : match.start()])
            start = match.end()
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if piece.strip()]

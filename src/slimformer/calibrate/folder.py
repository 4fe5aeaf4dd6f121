"""A folder of files to documents: images, or recordings.

A file becomes a document whose text is its path and whose group is the digest of its bytes, so `split_documents` serves
files as well, and one stored under two names cannot be in two splits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

from slimformer.calibrate.documents import Document, Label, parse_labels
from slimformer.errors import DataEmpty, DataNotFound, DataUnreadable
from slimformer.files.reading import LARGE, read_bytes


def documents_below(
    folder: str | Path, what: str, suffixes: Sequence[str], *, samples: int | None = None, seed: int = 0
) -> list[Document]:
    """The files of a kind below a folder, at most `samples` of them, chosen by `seed`.

    Sub-folders, if there are several, name the classes; names that are numbers become numbers.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataNotFound(f"there is no folder {root}; give a folder of {what}s, with a sub-folder for each class")
    paths = sorted(path for path in root.rglob("*") if is_one(path, suffixes))
    if not paths:
        raise DataEmpty(f"there are no {what}s below {root}; looked for {', '.join(suffixes)}")
    documents = list(zip(paths, _classes(root, paths), strict=True))
    if samples is not None and samples < len(documents):
        documents = random.Random(seed).sample(documents, samples)
    # the whole path: whichever way a folder is named, its files are dealt to the splits alike
    return [Document(str(path.resolve()), label=label, group=digest(path, what)) for path, label in documents]


def is_one(path: Path, suffixes: Sequence[str]) -> bool:
    """Is this a file of a kind, by its name?"""
    # "._x.png" is what macOS leaves beside x.png
    return path.suffix.lower() in suffixes and not path.name.startswith(".") and path.is_file()


def _classes(root: Path, paths: Sequence[Path]) -> list[Label]:
    inside = [path.relative_to(root).parts for path in paths]
    names = [parts[0] if len(parts) > 1 else None for parts in inside]
    if len(set(names) - {None}) < 2:
        return [None] * len(paths)
    return parse_labels(names)


def digest(path: Path, what: str) -> str:
    """What a file holds, so that it is known under two names."""
    try:
        return hashlib.sha256(read_bytes(path, LARGE)).hexdigest()
    except OSError as error:
        raise DataUnreadable(f"{what} {path} cannot be opened: {error.strerror}") from error

"""The text that comes with the package: a mixture of kinds, so that a cut holds on more than one kind of text.

What is in it, from where and under which licence: `builtin/sources.json`; `benchmarks/builtin_text.py` makes both.
"""

import json
import lzma
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from slimformer.calibrate.document import Document, mix_documents
from slimformer.errors import DataNotFound

BUILTIN = "builtin"

# running text in English, mixed in equal shares under the name `builtin`
TEXT_KINDS = ("encyclopedia", "affairs", "web", "stories", "dialogue", "instructions", "code", "technical")
# other languages, and single sentences, definitions and questions for encoders and classifiers: by name only
KINDS = (*TEXT_KINDS, "languages", "sentences")

# Sources that are never fitted. On the first, choices are made: what is chosen where nothing was fitted holds
# elsewhere, too. The second are only measured on, and say what a cut does to other text.
CHOSEN_ON = ("austen", "austen-talk", "flask", "lessons")
MEASURED_ON = ("perl-faq", "moby-dick", "handbook", "express")
Role = Literal["fit", "select", "other"]


def builtin_documents(
    kinds: Sequence[str] | None = None, role: Role = "fit", *, allowed: Callable[[Document], bool] = lambda _: True
) -> list[Document]:
    """Documents of the kinds named, mixed in equal shares of characters; without names, the English text kinds.

    Every source has one role: its documents are fitted, chosen on, or only measured on. Those that are not `allowed`
    are left out before the others are mixed, and so is a kind of which that is most.
    """
    chosen = TEXT_KINDS if kinds is None else tuple(kinds)
    for kind in chosen:
        if kind not in KINDS:
            raise DataNotFound(f"there is no text 'builtin:{kind}'; after the colon may stand {', '.join(KINDS)}")
    by_kind: dict[str, list[Document]] = {kind: [] for kind in chosen}
    for kind, document in _all_documents():
        if kind in by_kind and role_of(document.source) == role:
            by_kind[kind].append(document)
    left = [(list(filter(allowed, documents)), documents) for documents in by_kind.values()]
    # the rest of a kind would end the mixture early, because none may outweigh another
    return mix_documents([some for some, documents in left if some and 2 * len(some) >= len(documents)])


def role_of(source: str | None) -> Role:
    """What the documents of a built-in source are for."""
    return "select" if source in CHOSEN_ON else "other" if source in MEASURED_ON else "fit"


def names_builtin(source: Any) -> bool:
    """Whether one source is `builtin`, or kinds of it: `builtin:code`. Several between commas are not one."""
    one = isinstance(source, str) and not any(sign in source for sign in ",\n")
    return one and (source == BUILTIN or source.startswith(f"{BUILTIN}:"))


def builtin_kinds(name: str) -> tuple[str, ...] | None:
    """The kinds that `builtin` (None: the default), `builtin:code` or `builtin:code+stories` names."""
    _, _, kinds = name.partition(":")
    return tuple(kind.strip() for kind in kinds.split("+")) if name != BUILTIN else None


@lru_cache(maxsize=1)
def _all_documents() -> tuple[tuple[str, Document], ...]:
    """Every document with its kind."""
    packed = files("slimformer.calibrate").joinpath("builtin", "texts.jsonl.xz").read_bytes()
    rows = map(json.loads, lzma.decompress(packed).decode().splitlines())
    return tuple((row["kind"], Document(row["text"], source=row["source"])) for row in rows)

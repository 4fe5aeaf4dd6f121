"""Single files of our own, known by what is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slimformer.files.reading import read_json

LARGEST = 256 << 20  # bytes of a file that is looked into


@dataclass(frozen=True)
class FileKind:
    """What a file is called, and whether one is such a file."""

    name: str
    holds: Callable[[Path], bool]


def json_of(name: str, key: str) -> FileKind:
    """JSON that says its format under this key, as every file of ours does."""

    def holds(path: Path) -> bool:
        try:
            content = read_json(path, LARGEST)
        except (OSError, ValueError):
            return False
        return isinstance(content, dict) and key in content

    return FileKind(name, holds)


PLAN = json_of("a plan", "slimformer_plan")
FRONT = json_of("a front", "slimformer_front")
ANY = FileKind("a file", lambda _path: True)

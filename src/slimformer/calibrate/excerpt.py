"""Of a file too large to read whole, pieces that lie evenly in it: calibration and healing need megabytes of a corpus.

The same file gives the same pieces, so what one run holds out, another does, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READ_WHOLE = 256 << 20  # bytes; larger files are read in pieces that hold as much together
PIECES = 256
BY_LINES = (".txt", ".jsonl", ".ndjson", ".tsv")  # a record ends where a line does; others are read whole
LONGEST_LINE = 1 << 20  # looked at for an end; what is longer is left out


def is_excerpted(path: Path) -> bool:
    """Is only a part of this file read?"""
    return path.suffix.lower() in BY_LINES and path.stat().st_size > READ_WHOLE


@contextmanager
def excerpt(path: Path) -> Iterator[Path]:
    """The file itself, or a temporary one with its first line and whole lines from evenly spaced places.

    Cost: reading `READ_WHOLE` bytes, whatever the size of the file.
    """
    if not is_excerpted(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
        short = Path(scratch) / path.name
        size, piece = path.stat().st_size, READ_WHOLE // PIECES
        with path.open("rb") as file, short.open("wb") as out:
            for i in range(PIECES):
                start = i * (size - piece) // (PIECES - 1)
                file.seek(start)
                lines = file.read(piece) + file.readline(LONGEST_LINE)
                if start:  # the line it fell into
                    lines = lines.partition(b"\n")[2]
                lines = lines[: lines.rfind(b"\n") + 1]  # nothing torn
                # an empty line, so that texts of two places are not taken for one
                out.write(lines + (b"\n" if path.suffix.lower() == ".txt" else b""))
        yield short

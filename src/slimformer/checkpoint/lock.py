"""One process at a place at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slimformer.errors import OutputExists


@contextmanager
def alone(file: Path, message: str) -> Iterator[None]:
    """Hold the lock of `file`, or refuse with what is `message`. The system gives it back when its owner ends, however.

    Where there are no such locks two processes do the same work twice, and harm nothing.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputExists(message) from None
        yield

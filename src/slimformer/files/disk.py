"""Files that are really on the disk, and one process at a folder at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def flush(path: Path) -> None:
    """Let a file, or the names in a folder, be on the disk before anything is built on them; folders where that is
    possible: some file systems (FUSE, shares) cannot do it for names."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS) or not path.is_dir():
            raise
    finally:
        os.close(place)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait for others that amend the same list. The system gives the lock back when its owner ends, however."""
    try:
        import fcntl
    except ImportError:  # there two at once may lose an entry, whose file then counts as somebody else's
        yield
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks is as one without `fcntl`
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)

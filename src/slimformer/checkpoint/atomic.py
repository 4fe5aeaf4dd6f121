"""Folders and files that are there whole or not at all.

What is written goes to `.<name>.partial-<host>-<pid>` beside its place and is renamed when it is complete. An error,
Ctrl-C or a polite kill removes it; what an impolite one leaves is swept away by the next run for the same place.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from slimformer.errors import CannotWrite, OutputExists, SlimformerError
from slimformer.words import option

OURS = {
    "plan.json": "slimformer_plan", "stats.json": "slimformer_stats", "cascade.json": "slimformer_cascade",
    "inspection.json": "slimformer_inspection", "probe.json": "slimformer_probe", "match.json": "slimformer_match",
    "adapt.json": "slimformer_adapt", "lab.json": "slimformer_lab", "export.json": "slimformer_export",
}  # fmt: skip
REASONS = {
    errno.ENOSPC: "the disk is full; free some space, or choose another place",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another place",
    errno.EFBIG: "the file is larger than is allowed here; raise the limit (ulimit -f), or choose another place",
    errno.EACCES: "permission denied; choose another place",
    errno.EPERM: "permission denied; choose another place",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.ENOTDIR: "a part of the path is a file; choose another place",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.EBUSY: "the place is in use (is it a mount point?); choose another place",
}


@contextmanager
def writing(folder: Path, *, force: bool) -> Iterator[Path]:
    """An empty folder beside `folder`, which takes its place when the block ends well and vanishes when it does not."""
    target = _absolute(folder)
    require_free(target, force)
    with _in_place(target) as partial:
        partial.mkdir()
        yield partial
        require_free(target, force)  # others may have come in the meantime
        _exchange(partial, target)


@contextmanager
def writing_file(path: Path, *, force: bool) -> Iterator[Path]:
    """The same for one file: what is written to the path given takes its place in one step."""
    target = _absolute(path)
    require_free_file(target, force)
    with _in_place(target) as partial:
        yield partial
        require_free_file(target, force)
        os.replace(partial, target)


def require_free(folder: Path, force: bool) -> None:
    """Refuse a folder that is there already; with `force`, refuse only what one would regret to lose."""
    target = _absolute(folder)
    _require_writable(target)
    if not os.path.lexists(target):
        return
    if not force:
        raise OutputExists(
            f"{folder} exists already; choose another folder, or replace it with {option('force', True)}"
        )
    reason = _regret(target)
    if reason:
        raise OutputExists(
            f"{folder} is not replaced, even with {option('force', True)}: {reason}; choose another folder"
        )


def require_free_file(path: Path, force: bool) -> None:
    """Refuse a file that is there already; with `force`, refuse only what is not a regular file."""
    target = _absolute(path)
    _require_writable(target)
    if not os.path.lexists(target):
        return
    if not force:
        raise OutputExists(f"{path} exists already; choose another file, or replace it with {option('force', True)}")
    if target.is_symlink() or not target.is_file():
        kind = "a link" if target.is_symlink() else "a folder" if target.is_dir() else "not a regular file"
        raise OutputExists(
            f"{path} is not replaced, even with {option('force', True)}: it is {kind}; choose another file"
        )


def _regret(target: Path) -> str | None:
    """Why a folder should not be thrown away, or None when it is a result or empty."""
    if target.is_symlink():
        return f"it is a link to {os.readlink(target)}"
    if not target.is_dir():
        return "it is a file"
    place = target.resolve()
    if Path.cwd().is_relative_to(place):
        return "the current working directory is in it"
    if Path(os.path.expanduser("~")).is_relative_to(place):
        return "the home directory is in it"
    if (target / ".git").exists():
        return "it holds a git repository"
    if any(target.iterdir()) and not any(_says(target / name, key) for name, key in OURS.items()):
        return "it is neither empty nor a result of slimformer"
    return None


def _says(path: Path, key: str) -> bool:
    try:
        return key in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _require_writable(target: Path) -> None:
    """Find out before the work, not after it, that nothing can be written."""
    above = next(parent for parent in target.parents if os.path.lexists(parent))
    if not above.is_dir():
        raise CannotWrite(f"{target} cannot be written: {above} is a file; choose another place")
    if not os.access(above, os.W_OK | os.X_OK):
        raise CannotWrite(f"{target} cannot be written: {above} is not writable; choose another place")


@contextmanager
def _in_place(target: Path) -> Iterator[Path]:
    """A free path beside `target`; what is there in the end, after an error, is removed."""
    with one_clear_line(target), _terminable():
        made = [parent for parent in target.parents if not parent.exists()]
        partial = _beside(target, "partial")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(target)
            yield partial
        except BaseException:
            _remove(partial)
            for parent in made:
                with suppress(OSError):
                    parent.rmdir()
            raise


def _exchange(partial: Path, target: Path) -> None:
    """Rename; an old target steps aside first and comes back when the rename fails."""
    if not target.exists():
        os.rename(partial, target)
        return
    old = _beside(target, "old")
    os.rename(target, old)
    try:
        os.rename(partial, target)
    except BaseException:
        os.rename(old, target)
        raise
    _remove(old)


def _beside(target: Path, role: str, host: str = socket.gethostname(), pid: int | None = None) -> Path:
    return target.with_name(f".{target.name}.{role}-{host}-{pid or os.getpid()}")


def _sweep(target: Path) -> None:
    """Remove what runs on this machine that are no longer alive have left beside `target`."""
    for role in ("partial", "old") if target.exists() else ("partial",):
        prefix = _beside(target, role, pid=0).name.removesuffix(str(os.getpid()))
        for path in target.parent.iterdir():
            pid = path.name.removeprefix(prefix)
            if path.name.startswith(prefix) and pid.isdigit() and (int(pid) == os.getpid() or not _alive(int(pid))):
                _remove(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _absolute(path: Path) -> Path:
    """The path without `..`, its parents resolved; a link in the last place stays a link."""
    path = Path(path)
    return path.resolve() if path.name in {"", ".."} else path.parent.resolve() / path.name


@contextmanager
def one_clear_line(target: Path) -> Iterator[None]:
    """Turn what the disk says into `CannotWrite`."""
    try:
        yield
    except SlimformerError:
        raise
    except Exception as error:
        code = _errno(error)
        if code not in REASONS:
            raise
        raise CannotWrite(f"{target} cannot be written: {REASONS[code]}") from error


def _errno(error: BaseException) -> int | None:
    """The number of an operating-system error; libraries in Rust hide it in the text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM, too, run the cleaning up; only where nobody else has asked for it."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

"""Folders and files that are there whole or not at all.

What is written goes to the folder `.<name>.partial-<host>-<pid>` next to its place, which is marked as ours from its
first moment, and is renamed when it is complete and on the disk. An error, Ctrl-C or a polite kill removes it; what an
impolite one leaves is swept away by the next run for the same place. A result lists its files (`files.manifest`), and
only what its list says is ever replaced.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from slimformer.errors import CannotWrite, FileChanged, OutputExists, SlimformerError
from slimformer.files import manifest
from slimformer.files.content import ANY, FileKind
from slimformer.files.disk import flush, one_at_a_time
from slimformer.messages.words import option

_IN_USE: set[Path] = set()  # drafts of this process; another thread may want the same place
SHOWN = 3  # files that are named when a folder is not replaced
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
def writing(folder: Path, kind: str, *, force: bool) -> Iterator[Path]:
    """An empty folder next to `folder`, which takes its place when the block ends well and vanishes when it does not.

    `kind` is what it is, for its list of files.
    """
    target = _absolute(folder)
    require_free(target, force)
    with _in_place(target) as partial:
        yield partial
        manifest.finish(partial, kind)
        _as_readable_as(partial / manifest.NAME, partial)
        require_free(target, force)  # others may have come in the meantime
        _exchange(partial, target)
        flush(target.parent)


def _as_readable_as(example: Path, folder: Path) -> None:
    """Give all files the mode of one that was written as usual: safetensors are for their owner alone otherwise, and
    who serves a model is often somebody else."""
    mode = stat.S_IMODE(example.stat().st_mode)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


@contextmanager
def writing_file(path: Path, *, force: bool, kind: FileKind) -> Iterator[Path]:
    """The same for one file a user has named: what is written to the path given takes its place in one step.

    With `force` it replaces only what is of the same kind.
    """
    target = _absolute(path)
    require_free_file(target, force, kind)
    with _in_place(target) as partial:
        yield partial / target.name
        flush(partial / target.name)
        require_free_file(target, force, kind)
        os.replace(partial / target.name, target)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The same for a file at a place of the program's own, such as a cache or the state of a training."""
    with writing_file(path, force=True, kind=ANY) as file:
        yield file


@contextmanager
def revising(folder: Path, name: str, *, anew: bool = False) -> Iterator[Path]:
    """The same for a file of a result that is there already, which stays a result: its list is amended; `anew` even
    where somebody had changed the file.

    The list names the new file before it takes its place, and the old one still, so a kill in between spoils nothing.
    """
    target = Path(folder).resolve() / name
    with one_clear_line(target):
        _require_regular(target, f"{target} is not replaced")
    with _in_place(target) as partial:
        yield partial / name
        flush(partial / name)
        with one_at_a_time(target.parent):
            manifest.amend(target.parent, name, partial / name, anew=anew)
            os.replace(partial / name, target)


def require_free(folder: Path, force: bool) -> None:
    """Refuse a folder that is there already; with `force`, refuse only what one would regret to lose.

    A result that a killed run had moved aside, and has not replaced, comes back first.
    """
    target = _absolute(folder)
    _require_writable(target)
    _bring_back(target)
    if not os.path.lexists(target):
        return
    if not force:
        raise OutputExists(
            f"{folder} exists already; choose another folder, or replace it with {option('force', True)}"
        )
    reason = _regret(target)
    if reason:
        raise OutputExists(f"{folder} is not replaced, even with {option('force', True)}: {reason}")


def require_apart(target: Path, *inputs: str | Path | None) -> None:
    """Refuse to write over what is being read: `force` must not destroy the dense model, its statistics or the data."""
    place = target.resolve()
    for given in inputs:
        if given and Path(given).exists() and Path(given).resolve().is_relative_to(place):
            what = "is" if Path(given).resolve() == place else f"holds {given}, which is"
            raise OutputExists(f"{target} {what} read to make the result, so it is not replaced; choose another place")


def require_free_file(path: Path, force: bool, kind: FileKind) -> None:
    """Refuse a file that is there already; with `force`, refuse only what is of another kind."""
    target = _absolute(path)
    _require_writable(target)
    if not os.path.lexists(target):
        return
    if not force:
        raise OutputExists(f"{path} exists already; choose another file, or replace it with {option('force', True)}")
    _require_regular(target, f"{path} is not replaced, even with {option('force', True)}")
    if not kind.holds(target):
        raise OutputExists(
            f"{path} is not replaced, even with {option('force', True)}: it is not {kind.name} of slimformer; "
            "choose another file"
        )


def _require_regular(target: Path, refusal: str) -> None:
    if target.is_symlink() or (target.exists() and not target.is_file()):
        what = "a link" if target.is_symlink() else "a folder" if target.is_dir() else "not a regular file"
        raise OutputExists(f"{refusal}: it is {what}; choose another file")


def _regret(target: Path) -> str | None:
    """Why a folder should not be thrown away, or None when it is a result or empty. Cost: reading it."""
    elsewhere = "choose another folder"
    if target.is_symlink():
        return f"it is a link to {os.readlink(target)}; {elsewhere}"
    if not target.is_dir():
        return f"it is a file; {elsewhere}"
    place = target.resolve()
    if _is_working_in(place):
        return f"the current working directory is in it; {elsewhere}"
    if Path(os.path.expanduser("~")).is_relative_to(place):
        return f"the home directory is in it; {elsewhere}"
    if (target / ".git").exists():
        return f"it holds a git repository; {elsewhere}"
    strangers = manifest.strangers(target)
    if not strangers:
        return None
    more = f" and {len(strangers) - SHOWN} more" if len(strangers) > SHOWN else ""
    names = f"{', '.join(strangers[:SHOWN])}{more}"
    if manifest.NAME in strangers or not (target / manifest.NAME).is_file():
        return (
            f"it is neither empty nor a result of slimformer with the list of its files ({manifest.NAME}), and holds "
            f"{names}; remove it by hand, or {elsewhere}"
        )
    changed = "it holds what slimformer did not write, or what has been changed since"
    return f"{changed}: {names}; move that away, or {elsewhere}"


def _is_working_in(place: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(place)
    except FileNotFoundError:  # somebody has removed it
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
    """A new folder next to `target`, marked as ours; it is removed in the end, where it has not been renamed."""
    partial, new_folders = _sibling(target, "partial", os.getpid()), [p for p in target.parents if not p.exists()]
    with one_clear_line(target), _terminable():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(target)
            if os.path.lexists(partial):
                if partial in _IN_USE:
                    raise CannotWrite(f"{target} is being written by another thread; wait for it")
                raise CannotWrite(f"{partial} is needed for the work and holds something else; move it away")
            try:
                partial.mkdir()
                _IN_USE.add(partial)
                manifest.begin(partial)
                yield partial
            finally:
                manifest.remove_unfinished(partial)
                _IN_USE.discard(partial)
        except BaseException:
            for parent in new_folders:
                with suppress(OSError):
                    parent.rmdir()
            raise


def _exchange(partial: Path, target: Path) -> None:
    """Rename; an old target steps aside first and comes back when the rename fails."""
    if not target.exists():
        os.rename(partial, target)
        return
    old = _sibling(target, "old", os.getpid())
    os.rename(target, old)
    try:
        os.rename(partial, target)
    except BaseException:
        os.rename(old, target)
        raise
    _discard(target, old)


def _discard(target: Path, old: Path) -> None:
    """Remove a result that has a successor, under a name that nobody would bring it back from.

    What is not in its list, or cannot be removed, stays under that name.
    """
    place = _sibling(target, "replaced", os.getpid())
    with suppress(OSError, FileChanged):
        os.rename(old, place)
        manifest.remove_listed(place)


def _sibling(target: Path, role: str, pid: int) -> Path:
    return target.with_name(f".{target.name}.{role}-{socket.gethostname()}-{pid}")


def _left(target: Path, role: str) -> list[Path]:
    """What runs on this machine that are no longer alive have left next to `target`."""
    if not target.parent.is_dir():
        return []
    prefix = _sibling(target, role, 0).name.removesuffix("0")
    names = (path for path in target.parent.iterdir() if path.name.startswith(prefix))
    pids = {path: path.name.removeprefix(prefix) for path in names}
    return [
        path
        for path, pid in pids.items()
        if re.fullmatch("[1-9][0-9]{0,9}", pid)
        and (path not in _IN_USE if int(pid) == os.getpid() else not _alive(int(pid)))
    ]


def _sweep(target: Path) -> None:
    """Remove what killed runs have left, if it has our mark: drafts, and results whose successor is there."""
    roles = ("partial", "replaced", "old") if target.exists() else ("partial", "replaced")
    for path in (path for role in roles for path in _left(target, role)):
        if manifest.is_unfinished(path):
            manifest.remove_unfinished(path)
        elif _listed(path):
            _discard(target, path)


def _bring_back(target: Path) -> None:
    """Put a result back that a run had moved aside when it was killed, before its successor was there."""
    for path in _left(target, "old"):
        if _listed(path) and not os.path.lexists(target):
            with one_clear_line(target):
                os.rename(path, target)


def _listed(folder: Path) -> bool:
    """Is it a folder with a list of its files?"""
    try:
        return not folder.is_symlink() and folder.is_dir() and manifest.read(folder) is not None
    except FileChanged:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


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
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else None


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

"""What was written into a folder: `slimformer.json` lists its files with their sizes and SHA-256.

By it a result is known before it is replaced, and a file before it is read: what is not in the list, or no longer as it
was written, is somebody else's. A folder is marked from its first moment, with an empty list while it is being written.

    slimformer_files    version of this format
    kind                what the folder is; "unfinished" while it is being written
    files               path → bytes, sha256, and before: the SHA-256 of what an update has replaced
    results             folders inside that have a list of their own
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from slimformer.errors import FileChanged
from slimformer.files.disk import flush
from slimformer.files.reading import read_own_json, require_regular

NAME, FORMAT = "slimformer.json", 1
UNFINISHED = "unfinished"
LARGEST = 64 << 20  # bytes of a list that is read


@dataclass(frozen=True)
class Entry:
    """A file as it was written. `before` is known, too, because a run may be killed before its file takes the place."""

    bytes: int
    sha256: str
    before: str = ""

    def fits(self, path: Path) -> bool:
        """Is that what is there? Cost: reading it, unless the size tells already."""
        if not self.before and path.stat().st_size != self.bytes:
            return False
        return sha256(path) in (self.sha256, self.before)


@dataclass(frozen=True)
class Manifest:
    """The list of a folder."""

    kind: str
    files: Mapping[str, Entry] = field(default_factory=dict)
    results: tuple[str, ...] = ()

    def to_json(self) -> str:
        files = {name: {k: v for k, v in vars(entry).items() if v != ""} for name, entry in self.files.items()}
        content = {"kind": self.kind, "files": files, "results": list(self.results)}
        return json.dumps({"slimformer_files": FORMAT, **content}, indent=1)


def begin(folder: Path) -> None:
    """Mark a new folder as one that is being written."""
    (folder / NAME).write_text(Manifest(UNFINISHED).to_json(), encoding="utf-8")


def finish(folder: Path, kind: str) -> None:
    """List all that is in a folder, and let it be on the disk. Cost: reading it."""
    files, results = {}, []
    for path in _contents(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            results.append(name)
        elif name != NAME:
            flush(path)
            files[name] = Entry(path.stat().st_size, sha256(path))
    (folder / NAME).write_text(Manifest(kind, files, tuple(results)).to_json(), encoding="utf-8")
    flush(folder / NAME)


def amend(folder: Path, name: str, file: Path, *, anew: bool = False) -> None:
    """Enter what `file`, which lies in a folder of its own, will be when it takes the place `name` in `folder`.

    A folder without a list gets none, and a file somebody has changed stays theirs, unless it is to be made `anew`.
    """
    known = read(folder)
    if known is None or known.kind == UNFINISHED:
        return
    there, entry = folder / name, known.files.get(name)
    if os.path.lexists(there) and not anew and not (entry and entry.fits(there)):
        return
    before = sha256(there) if there.exists() else ""
    listed = {**known.files, name: Entry(file.stat().st_size, sha256(file), before)}
    draft = file.with_name(f"{NAME}.new")
    draft.write_text(replace(known, files=listed).to_json(), encoding="utf-8")
    flush(draft)
    os.replace(draft, folder / NAME)


def read(folder: Path) -> Manifest | None:
    """The list of a folder; None where there is none."""
    path = folder / NAME
    try:
        return _checked(read_own_json(path, LARGEST))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise FileChanged(
            f"{path}, the list of what slimformer wrote there, cannot be read ({reason}); use an intact copy of the "
            "folder, or remove the list and nothing will be compared with it"
        ) from None


def require_unchanged(folder: Path, *patterns: str) -> None:
    """Refuse files of these names that are not what was written. Without a list, and of files not in it, nothing is
    known, and nothing refused. Cost: reading them."""
    for path in changed(folder, *patterns):
        raise FileChanged(
            f"{path} is not what slimformer wrote there: its SHA-256 is not the one in {NAME}; use an intact copy, or, "
            f"if the change is meant, remove {folder / NAME}"
        )


def changed(folder: Path, *patterns: str) -> Iterator[Path]:
    """Files of these names that are in the list and not what was written. Cost: reading them."""
    known = read(folder)
    for name, entry in known.files.items() if known else ():
        path = folder / name
        if any(fnmatchcase(name, pattern) for pattern in patterns) and path.is_file() and not entry.fits(path):
            yield path


def strangers(folder: Path) -> list[str]:
    """Files in a folder that are not in its list, or not as they were written; all of them where there is no list."""
    try:
        known = read(folder)
    except FileChanged:
        known = None
    return [name for path in _contents(folder) for name in _strange(path, folder, known)]


def _strange(path: Path, folder: Path, known: Manifest | None) -> list[str]:
    name = path.relative_to(folder).as_posix()
    if known is not None and name in known.results and not path.is_symlink():
        return [f"{name}/{each}" for each in strangers(path)]
    if known is not None and name == NAME:
        return []
    entry = known.files.get(name) if known else None
    ours = entry is not None and path.is_file() and not path.is_symlink() and entry.fits(path)
    return [] if ours else [name]


def remove_listed(folder: Path) -> None:
    """Remove a result: the files in its list and what becomes empty. Anything else stays."""
    known = read(folder) or Manifest(UNFINISHED)
    for result in known.results:
        remove_listed(folder / result)
    for path in list(_contents(folder)):
        if path.relative_to(folder).as_posix() in known.files:
            path.unlink()
    for here, folders, _ in os.walk(folder, topdown=False):
        for path in (Path(here, each) for each in folders):
            if is_unfinished(path):
                remove_unfinished(path)
            elif not path.is_symlink():
                with suppress(OSError):
                    path.rmdir()
    if os.listdir(folder) in ([], [NAME]):
        (folder / NAME).unlink(missing_ok=True)
        folder.rmdir()


def remove_unfinished(folder: Path) -> None:
    """Remove a folder that a run worked in: last what marks it, so that the next run can go on with that."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != NAME:
                path.unlink()
        (folder / NAME).unlink(missing_ok=True)
        folder.rmdir()


def is_unfinished(folder: Path) -> bool:
    """A folder that a run works in, or was killed in: so marked, or still without anything."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        known = read(folder)
    except FileChanged:
        known = None
    if known is not None:
        return known.kind == UNFINISHED
    return all(path.name == NAME and path.is_file() and not path.stat().st_size for path in folder.iterdir())


def sha256(path: Path) -> str:
    """The checksum of a file, read piece by piece."""
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _contents(folder: Path) -> Iterator[Path]:
    """Everything below a folder but folders as such, in order; of those that have a list of their own the folder, of
    those a run was stopped in nothing. Links are not followed."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir():
            yield path
        elif os.path.lexists(path / NAME):
            if not is_unfinished(path):
                yield path
        else:
            yield from _contents(path)


def _checked(content: Any) -> Manifest:
    if not isinstance(content, dict) or content.get("slimformer_files") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    files = {name: Entry(**entry) for name, entry in content["files"].items()}
    for name, entry in files.items():
        kinds = (type(entry.bytes), type(entry.sha256), type(entry.before))
        if not _is_inside(name) or kinds != (int, str, str):
            raise ValueError(f"the entry {name!r} is none")
    results = content["results"]
    if not all(isinstance(name, str) and _is_inside(name) for name in results) or not isinstance(content["kind"], str):
        raise ValueError("its fields are of other types")
    return Manifest(content["kind"], files, tuple(results))


def _is_inside(name: str) -> bool:
    """A path that cannot lead out of the folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name and path.as_posix() == name != "."

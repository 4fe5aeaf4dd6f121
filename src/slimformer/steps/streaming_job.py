"""The work folder of a model that is compressed block by block: what is done, so that a killed run can go on.

`.<name>.streaming` next to the result holds what was asked for (job.json), a note of every block that is through a
phase (notes), the statistics, the states between blocks and the blocks of the smaller model. It is there until the
result is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slimformer.checkpoint.atomic import one_clear_line
from slimformer.checkpoint.lock import alone
from slimformer.errors import OutputExists, WorkTorn
from slimformer.files.disk import flush
from slimformer.files.reading import read_own_json, require_regular
from slimformer.files.seals import read_sealed_json, sealed_json

FORMAT = 2
NOTES, GONE = "notes", ".notes"
LAST = (".job.json", "job.json", "lock")
PARTS = (GONE, "states", "statistics", "blocks", "shards")  # what is in a work folder besides


@dataclass(frozen=True)
class Job:
    """A work folder in use."""

    folder: Path
    resumed: bool

    @property
    def states(self) -> Path:
        return self.folder / "states"

    @property
    def statistics(self) -> Path:
        return self.folder / "statistics"

    def block(self, i: int, version: int) -> Path:
        """Block i of the smaller model, as it was once settled; never overwritten, so that what was noted stays."""
        return self.folder / "blocks" / f"block-{i:03d}-{version}.safetensors"

    def shard(self, i: int) -> Path:
        """Block i as it is stored in the result."""
        return self.folder / "shards" / f"block-{i:03d}.safetensors"

    def notes(self, phase: str) -> list[Any]:
        """What was noted of each block that is through a phase."""
        return [note["note"] for note in self._notes(phase)]

    def versions(self) -> dict[int, int]:
        """The version of every block of the smaller model that counts."""
        phases = {path.stem.rpartition(".")[0] for path in self._folder.glob("*.json")}
        newest: dict[int, int] = {}
        for note in (note for phase in phases for note in self._notes(phase)):
            for block, version in note["blocks"].items():
                newest[int(block)] = max(version, newest.get(int(block), 0))
        return newest

    def finish(self, phase: str, note: Any, versions: Mapping[int, int] | None = None) -> None:
        """One more block is through a phase: a note on it, and the blocks it has settled. In one step."""
        with one_clear_line(self.folder):
            self._folder.mkdir(exist_ok=True)
            content = {"note": note, "blocks": {str(i): version for i, version in (versions or {}).items()}}
            _write(self._path(phase, self.done(phase)), sealed_json(content))

    def done(self, phase: str) -> int:
        """How many blocks are through a phase; refused where a note is missing between others: states are then of later
        blocks than they would be taken for."""
        there = {path.name for path in self._folder.glob("*.json")} if self._folder.is_dir() else set()
        count = sum(name.rpartition(".")[0].rpartition(".")[0] == phase for name in there)
        if missing := {self._path(phase, n).name for n in range(count)} - there:
            raise WorkTorn(f"{self._folder / min(missing)} is not there")
        return count

    def begin_anew(self) -> None:
        """Remove what was done, because it cannot be resumed."""
        _clear(self.folder, but=("lock", "job.json"))

    @property
    def _folder(self) -> Path:
        return self.folder / NOTES

    def _path(self, phase: str, n: int) -> Path:
        return self._folder / f"{phase}.{n:05d}.json"

    def _notes(self, phase: str) -> list[dict[str, Any]]:
        return [read_note(self._path(phase, n)) for n in range(self.done(phase))]


def read_note(path: Path) -> dict[str, Any]:
    """What was noted of a block, and the versions of blocks it has settled."""
    try:
        note = read_sealed_json(path)
        if not isinstance(note, dict) or note.keys() != {"note", "blocks"}:
            raise ValueError("it is no note")
        return note
    except (OSError, ValueError) as error:
        raise WorkTorn(f"{path} cannot be read ({error})") from error


def require_whole(*paths: Path) -> None:
    """Refuse files of tensors that are not there or not whole. Cost: reading their headers."""
    for path in paths:
        try:
            require_regular(path)
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise WorkTorn(f"{path} cannot be read ({error})") from error


@contextmanager
def job_for(target: Path, facts: dict[str, Any]) -> Iterator[Job]:
    """The work folder for a result; one of an earlier run that was asked for the same is resumed.

    When the block ends well the folder is removed. A second process for the same result is refused.
    """
    folder = work_folder(target)
    wanted = {"slimformer_stream": FORMAT, **json.loads(json.dumps(facts))}
    with one_clear_line(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / "lock", f"another process is making the same result (it works in {folder})"):
            job = _earlier(folder)
            if job != wanted:
                _require_ours(folder, ours=job is not None)
                _clear(folder, but=("lock",))
                _write(folder / "job.json", json.dumps(wanted, indent=1))
            yield Job(folder, resumed=job == wanted)
            with suppress(OSError):  # the result is there; what cannot be removed stays, and is known to be ours
                _clear(folder)
                folder.rmdir()


def asked_before(target: Path) -> dict[str, Any]:
    """What an earlier run for the same result was asked for; nothing where there was none."""
    return _earlier(work_folder(target)) or {}


def work_folder(target: Path) -> Path:
    """Where the work for a result is kept."""
    target = Path(target)
    return target.parent.resolve() / f".{target.name}.streaming"


def _earlier(folder: Path) -> dict[str, Any] | None:
    """What an earlier run was asked for."""
    try:
        content = read_own_json(folder / "job.json")
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "slimformer_stream" in content else None


def _require_ours(folder: Path, *, ours: bool) -> None:
    """What is not ours stays, and is said."""
    if not ours and any(path.name not in {"lock", ".job.json"} for path in folder.iterdir()):
        raise OutputExists(f"{folder} is needed for the work and holds something else; move it away")


def _clear(folder: Path, but: Sequence[str] = ()) -> None:
    """Remove what we put into a work folder: first, in one step, what says that it can be resumed, last what says
    that it is ours. So a run that is killed meanwhile leaves a folder that the next run knows what to do with.
    """
    if (folder / GONE).is_dir():
        shutil.rmtree(folder / GONE)
    if (folder / NOTES).is_dir():
        os.replace(folder / NOTES, folder / GONE)
    for name in (*PARTS, *LAST):
        path = folder / name
        if name in but:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """In one step, and on the disk before the next."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(text)
    flush(partial)
    os.replace(partial, path)
    flush(path.parent)

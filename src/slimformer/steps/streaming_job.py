"""The work folder of a model that is compressed block by block: what is done, so that a killed run can go on.

`.<name>.streaming` beside the result holds what was asked for (job.json), how far it is (done.json), the statistics,
the states between blocks and the finished blocks. It is there until the result is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
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
from slimformer.models.state_store import StateStore

FORMAT = 1
FIRST, LAST = ("done.json", ".done.json"), (".job.json", "job.json", "lock")
PARTS = ("states", "statistics", "curves", "shards", "nested")  # what is in a work folder besides


@dataclass(frozen=True)
class Job:
    """A work folder in use."""

    folder: Path
    resumed: bool

    @property
    def states(self) -> StateStore:
        return StateStore(self.folder / "states")

    @property
    def statistics(self) -> Path:
        return self.folder / "statistics"

    def curves(self, i: int) -> Path:
        return self.folder / "curves" / f"block-{i:03d}.json"

    def shard(self, i: int) -> Path:
        return self.folder / "shards" / f"block-{i:03d}.safetensors"

    def nested(self, i: int) -> Path:
        return self.folder / "nested" / f"block-{i:03d}.safetensors"

    def done(self, phase: str) -> int:
        """How many blocks have been through a phase."""
        return int(self._said().get(phase, {}).get("blocks", 0))

    def notes(self, phase: str) -> list[Any]:
        """What was noted of each of them."""
        return list(self._said().get(phase, {}).get("notes", []))

    def finish(self, phase: str, blocks: int, note: Any) -> None:
        """So many blocks are through, and what there is to say of the last. In one step."""
        said = self._said()
        said[phase] = {"blocks": blocks, "notes": [*self.notes(phase)[: blocks - 1], note]}
        _write(self.folder / "done.json", sealed_json(said))

    def begin_anew(self) -> None:
        """Remove what was done, because it cannot be gone on with."""
        _clear(self.folder, but=("lock", "job.json"))

    def _said(self) -> dict[str, Any]:
        path = self.folder / "done.json"
        try:
            said = read_sealed_json(path)
            if any(len(phase["notes"]) != phase["blocks"] for phase in said.values()):
                raise ValueError("it contradicts itself")
            return dict(said)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
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
def job_for(target: Path, asked: dict[str, Any]) -> Iterator[Job]:
    """The work folder for a result; one of an earlier run that was asked for the same is gone on with.

    When the block ends well the folder is removed. A second process for the same result is refused.
    """
    folder = work_folder(target)
    wanted = {"slimformer_stream": FORMAT, **json.loads(json.dumps(asked))}
    with one_clear_line(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / "lock", f"another process is making the same result (it works in {folder})"):
            found = _found(folder)
            if found != wanted:
                _require_ours(folder, ours=found is not None)
                _clear(folder, but=("lock",))
                _write(folder / "job.json", json.dumps(wanted, indent=1))
            yield Job(folder, resumed=found == wanted)
            with suppress(OSError):  # the result is there; what cannot be removed stays, and can be told to be ours
                _clear(folder)
                folder.rmdir()


def asked_before(target: Path) -> dict[str, Any]:
    """What an earlier run for the same result was asked for; nothing where there was none."""
    return _found(work_folder(target)) or {}


def work_folder(target: Path) -> Path:
    """Where the work for a result is kept."""
    target = Path(target)
    return target.parent.resolve() / f".{target.name}.streaming"


def _found(folder: Path) -> dict[str, Any] | None:
    """What an earlier run was asked for."""
    try:
        found = read_own_json(folder / "job.json")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "slimformer_stream" in found else None


def _require_ours(folder: Path, *, ours: bool) -> None:
    """What is not ours stays, and is said."""
    if not ours and any(path.name not in {"lock", ".job.json"} for path in folder.iterdir()):
        raise OutputExists(f"{folder} is needed for the work and holds something else; move it away")


def _clear(folder: Path, but: Sequence[str] = ()) -> None:
    """Remove what we put into a work folder: first what says that it can be gone on with, last what says that it is
    ours. So whoever is killed meanwhile leaves a folder that the next run knows what to do with.
    """
    for name in (*FIRST, *PARTS, *LAST):
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

"""The work folder of a model that is compressed block by block: what is done, so that a killed run can go on.

`.<name>.streaming` beside the result holds what was asked for (job.json), how far it is (done.json), the statistics,
the states between blocks and the finished blocks. It is there until the result is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimformer.calibrate.shelf import Shelf
from slimformer.checkpoint.atomic import one_clear_line
from slimformer.checkpoint.lock import alone
from slimformer.errors import OutputExists

FORMAT = 1


@dataclass(frozen=True)
class Job:
    """A work folder in use."""

    folder: Path
    resumed: bool

    @property
    def shelf(self) -> Shelf:
        return Shelf(self.folder / "states")

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
        _write(self.folder / "done.json", said)

    def _said(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "done.json").read_text()))
        except FileNotFoundError:
            return {}


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
                _empty(folder, ours=found is not None)
                _write(folder / "job.json", wanted)
            yield Job(folder, resumed=found == wanted)
            shutil.rmtree(folder, ignore_errors=True)


def work_folder(target: Path) -> Path:
    """Where the work for a result is kept."""
    target = Path(target)
    return target.parent.resolve() / f".{target.name}.streaming"


def _found(folder: Path) -> dict[str, Any] | None:
    """What an earlier run was asked for."""
    try:
        found = json.loads((folder / "job.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "slimformer_stream" in found else None


def _empty(folder: Path, *, ours: bool) -> None:
    """Remove what another run left; what is not ours stays, and is said."""
    others = [path for path in folder.iterdir() if path.name not in {"lock", ".job.json"}]
    if others and not ours:
        raise OutputExists(f"{folder} is needed for the work and holds something else; move it away")
    for path in others:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write(path: Path, value: Any) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(value, indent=1))
    os.replace(partial, path)

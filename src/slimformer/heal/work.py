"""The work folder of a healing: what is decided and done, so that a killed run goes on to the same weights.

`.<name>.healing` next to the result holds what was asked for (job.json), sealed notes with the parameters of every
block that is through the local phase, the checkpoints of the Trainer (trainer) and what the teacher said (teacher). It
is there until the result is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from slimformer.calibrate.distributed import is_follower, world
from slimformer.checkpoint.atomic import one_clear_line, replacing
from slimformer.checkpoint.lock import alone
from slimformer.errors import OutputExists
from slimformer.files.reading import read_own_json
from slimformer.files.seals import read_sealed, save_sealed

FORMAT = 1
JOB, LOCK, TRAINER, TEACHER, NOTE = "job.json", "lock", "trainer", "teacher", ".note"


@dataclass(frozen=True)
class Work:
    """A work folder in use; of several processes the first writes and reads it, and tells the others what to do."""

    folder: Path

    @property
    def trainer(self) -> Path:
        """Where the Trainer keeps its checkpoints."""
        return self.folder / TRAINER

    @property
    def teacher(self) -> Path:
        """Where the likeliest outcomes of the teacher are kept."""
        return self.folder / TEACHER

    def keep(self, name: str, note: Any, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Note something that JSON can say, with tensors; whole or not at all."""
        if not is_follower():
            with replacing(self.folder / f"{name}{NOTE}") as file:
                save_sealed(tensors or {}, file, {"note": json.dumps(note)})

    def recall(self, name: str) -> tuple[Any, dict[str, Tensor]] | None:
        """What was noted under a name, by this run or by one that was stopped; None where nothing whole was."""
        try:
            tensors, texts = ({}, {}) if is_follower() else read_sealed(self.folder / f"{name}{NOTE}")
        except (OSError, ValueError):
            return None
        return (json.loads(texts["note"]), tensors) if "note" in texts else None


def agreed(value: Any) -> Any:
    """What the first process says, for all of them: clocks differ, and steps must not."""
    together = world()
    return together.told({"value": value} if together.leads else {})["value"]


@contextmanager
def work_for(target: Path, facts: Mapping[str, Any]) -> Iterator[Work]:
    """The work folder for a result; one of an earlier run that was asked for the same is gone on with.

    When the block ends well the folder is removed. A second process for the same result is refused.
    """
    target = Path(target)
    folder = target.parent.resolve() / f".{target.name}.healing"
    wanted = {"slimformer_heal": FORMAT, **json.loads(json.dumps(dict(facts)))}
    if is_follower():
        yield Work(folder)
        return
    with one_clear_line(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / LOCK, f"another process is healing the same result (it works in {folder})"):
            job = _earlier(folder)
            if job != wanted:
                _require_ours(folder, ours=job is not None)
                _clear(folder)
                with replacing(folder / JOB) as file:
                    file.write_text(json.dumps(wanted, indent=1))
            yield Work(folder)
            with suppress(OSError):  # the result is there; what cannot be removed stays, and is known to be ours
                _clear(folder)
                (folder / JOB).unlink(missing_ok=True)
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()


def _earlier(folder: Path) -> dict[str, Any] | None:
    """What an earlier run was asked for."""
    try:
        content = read_own_json(folder / JOB)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "slimformer_heal" in content else None


def _require_ours(folder: Path, *, ours: bool) -> None:
    """What is not ours stays, and is said."""
    if not ours and any(path.name != LOCK and ".partial-" not in path.name for path in folder.iterdir()):
        raise OutputExists(f"{folder} is needed for the work and holds something else; move it away")


def _clear(folder: Path) -> None:
    """Remove notes, checkpoints and what the teacher said."""
    for note in folder.glob(f"*{NOTE}"):
        note.unlink()
    for folder_name in (TRAINER, TEACHER):
        if (folder / folder_name).is_dir():
            shutil.rmtree(folder / folder_name)

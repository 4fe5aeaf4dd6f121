"""The folder of an experiment, and what lies where in it.

lab.json              what the folder is
runs/<run>.json       a finished run, written in one step
runs/<run>.safetensors   the state of one under way
models/<run>/         its model, with `save_models: true`
texts/<key>/          token ids and the tokenizer trained for them
table.md, .csv, .json and figures/
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimformer.checkpoint import lock
from slimformer.checkpoint.atomic import replacing, require_free, writing
from slimformer.checkpoint.save import write_belongings
from slimformer.errors import BadExperiment, ExperimentChanged, ReportNotFound
from slimformer.files.reading import read_json
from slimformer.lab.grid import slug
from slimformer.lab.settings import Experiment, RunSettings, checked
from slimformer.lab.start import folder_of
from slimformer.messages.words import option

Facts = dict[str, Any]
LOCK = ".lock"


@dataclass(frozen=True)
class LabFolder:
    """Paths of an experiment, and the runs that have ended."""

    path: Path

    @property
    def texts(self) -> Path:
        """Where token ids are kept."""
        return self.path / "texts"

    def run_file(self, run: RunSettings) -> Path:
        """The result of a run."""
        return self.path / "runs" / f"{slug(run.name)}.json"

    def state_file(self, run: RunSettings) -> Path:
        """The state of a run under way."""
        return self.run_file(run).with_suffix(".safetensors")

    def model_folder(self, run: RunSettings) -> Path:
        """The model a run leaves."""
        return self.path / "models" / slug(run.name)

    def start(self, run: RunSettings) -> Path | None:
        """The folder with the weights a run starts from; none where they are drawn."""
        if run.before is None:
            return None if run.start is None else folder_of(run.start)
        place = self.model_folder(run.before)
        ended = self.result(run.before)
        if ended is None or not place.is_dir():
            why = ended and ended["note"]
            raise BadExperiment(f"{run.before.name} left no model to start from{f': {why}' if why else ''}")
        return place

    def result(self, run: RunSettings) -> Facts | None:
        """What a run of exactly these settings has found, if it has ended."""
        result = _read(self.run_file(run))
        return result if result and result["digest"] == run.digest() else None

    def changed(self, runs: Sequence[RunSettings]) -> list[str]:
        """For each run that ended under the same name with other settings: a line that says which."""
        before = ((run, _read(self.run_file(run))) for run in runs)
        return [_difference(run, earlier) for run, earlier in before if earlier and earlier["digest"] != run.digest()]

    def write(self, run: RunSettings, result: Facts, model: Any, processor: Any) -> None:
        """Put the model, then the result in place; with the result there, the run has ended."""
        if run.save_models and not result["note"]:
            with writing(self.model_folder(run), "checkpoint", force=True) as place:
                model.save_pretrained(place)
                write_belongings(place, processor, None)
                card = {
                    "slimformer_lab": 1,
                    "run": run.name,
                    "digest": run.digest(),
                    "validation": result["validation"],
                }
                (place / "lab.json").write_text(json.dumps(card, indent=1))
        with replacing(self.run_file(run)) as file:
            file.write_text(json.dumps(result, indent=1))
        self.state_file(run).unlink(missing_ok=True)

    def describe(self, experiment: Experiment, runs: Sequence[RunSettings]) -> None:
        """Write down what the folder is for; runs that the file no longer has stay, and are left out of the table."""
        rows: dict[str, list[str]] = {}
        for run in runs:
            rows.setdefault(run.row, []).append(run.name)
        description = {"slimformer_lab": 1, "experiment": experiment.model_dump(mode="json"), "rows": rows}
        with replacing(self.path / "lab.json") as file:
            file.write_text(json.dumps(description, indent=1))

    def forget(self, runs: Sequence[RunSettings]) -> None:
        """Remove results and states of these runs; their models are replaced when they end again."""
        for run in runs:
            self.run_file(run).unlink(missing_ok=True)
            self.state_file(run).unlink(missing_ok=True)


def open_folder(path: Path, runs: Sequence[RunSettings], *, force: bool) -> LabFolder:
    """The folder to work in. One with other contents is refused; runs of other settings need `force`."""
    folder = LabFolder(path)
    if _read(path / "lab.json", "slimformer_lab") is None and not _is_unused(path):
        require_free(path, force=False)
    changed = folder.changed(runs)
    if changed and not force:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise ExperimentChanged(
            f"{path} has runs of other settings: {changed[0]}{more}; run them again with "
            f"{option('force', True)}, or give another "
            f"{option('folder')}"
        )
    for run in runs:
        if run.save_models and folder.result(run) is None:
            require_free(folder.model_folder(run), force=True)  # before the training, not after it
    path.mkdir(parents=True, exist_ok=True)
    return folder


def read_folder(path: Path) -> tuple[Experiment, list[str], list[Facts]]:
    """What a folder holds: the experiment, its rows in the order of the file, and those of its runs that have ended."""
    description = _read(path / "lab.json", "slimformer_lab")
    if description is None or "experiment" not in description:
        raise ReportNotFound(f"{path} is no folder `slimformer lab run` wrote: it has no lab.json")
    files = sorted((path / "runs").glob("*.json"))
    known = {name for names in description["rows"].values() for name in names}
    results = [each for each in map(_read, files) if each and each["name"] in known]
    return checked(Experiment, description["experiment"], str(path / "lab.json")), list(description["rows"]), results


def alone(folder: LabFolder) -> AbstractContextManager[None]:
    """Keep a second runner out of the folder."""
    message = (
        f"another `slimformer lab run` is at work in {folder.path}; wait for it, or give another {option('folder')}"
    )
    return lock.alone(folder.path / LOCK, message)


def _is_unused(path: Path) -> bool:
    """An empty folder, or one a runner was stopped in before it began."""
    return path.is_dir() and {file.name for file in path.iterdir()} <= {LOCK}


def _read(path: Path, key: str = "slimformer_lab_run") -> Facts | None:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and key in content else None


def _difference(run: RunSettings, earlier: Facts) -> str:
    """The first setting that differs."""
    now = run.decisive()
    old = {key: value for key, value in _flat(earlier["settings"]).items() if not key.startswith("dataset")}
    for key, value in _flat(now).items():
        if key in old and old[key] != value and not key.endswith(("path", "start")):
            return f"{run.name}: {key} was {old[key]} and is {value}"
    gone = sorted(set(old) ^ (set(_flat(now)) - {"dataset"}))
    return f"{run.name}: {gone[0] if gone else 'the data'} changed"


def _flat(settings: Facts, before: str = "") -> Facts:
    flat: Facts = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat

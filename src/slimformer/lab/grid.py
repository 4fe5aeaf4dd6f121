"""From an experiment to its runs: data sets × variants × grid × seeds."""

from __future__ import annotations

import itertools
import os.path
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slimformer.errors import BadExperiment
from slimformer.lab.settings import Experiment, Pretraining, RunSettings, TrainSettings, checked

OWN = set(TrainSettings.model_fields) - {"task", "model"} | {"pretrain"}
INNER = {"data", "optimiser", "augmentation"}


def expand(experiment: Experiment, folder: Path) -> list[RunSettings]:
    """Every run, in the order of the file, seeds last. Later settings win: data set, then variant, then grid.

    What has to be pretrained stands before the first run that starts from it; runs that need the same share it.
    """
    runs: list[RunSettings] = []
    variants = experiment.variants or {"": {}}
    for (dataset, data), (variant, changes) in itertools.product(experiment.datasets.items(), variants.items()):
        for point in _points(experiment.grid):
            fields = _start(experiment, folder, dataset)
            labels = {"dataset": dataset, **({"variant": variant} if variant else {}), **point}
            row = row_name(labels, experiment.titles, several=len(experiment.datasets) > 1)
            for settings in (data.set, changes, point):
                for key, value in settings.items():
                    assign(fields, key, value, row)
            for run in _seeded(fields, row, dataset, labels, folder):
                runs += _with_before(run, runs)
    _require_apart(runs)
    _require_rows(experiment, runs)
    return runs


def assign(fields: dict[str, Any], key: str, value: Any, row: str = "") -> None:
    """Set `key`: a field of the run, `part.field` of data, optimiser or augmentation, else a field of the model."""
    part, _, inner = key.partition(".")
    if inner and part in INNER:
        fields[part] = {**fields[part], inner: value}
    elif inner:
        parts = ", ".join(sorted(INNER))
        raise BadExperiment(f"{row}: there is no part {part!r} to set {key!r} in; parts are {parts}")
    elif key in INNER & OWN and not isinstance(value, Mapping):
        raise BadExperiment(f"{row}: {key} is {value!r}; give its fields, e.g. {{{next(iter(fields[key]))}: …}}")
    elif key in {"epochs", "steps"}:
        fields |= {"epochs": None, "steps": None, key: value}
    elif key == "pretrain":
        if value and not isinstance(value, Mapping):
            raise BadExperiment(f"{row}: pretrain is {value!r}; give its fields, or false")
        fields[key] = {**(fields[key] or {}), **value} if value else None
    elif key in OWN or key == "seeds":
        fields[key] = {**fields[key], **value} if key in INNER else value
    else:
        fields["model"] = {**fields["model"], key: value}


def row_name(labels: Mapping[str, Any], titles: Mapping[str, str], *, several: bool) -> str:
    """What a row of the table is called: `mnist, no MLP, num_hidden_layers 6`."""
    shown = {key: value for key, value in labels.items() if key != "dataset" or several or len(labels) == 1}
    return ", ".join(
        str(v) if k in {"dataset", "variant"} else f"{titles.get(k, k)} {_short(v)}" for k, v in shown.items()
    )


def named(runs: list[RunSettings], words: str) -> list[RunSettings]:
    """The runs of rows that have these words in their names."""
    matching = [run for run in runs if words in run.row]
    needed = {run.before.digest() for run in matching if run.before is not None}
    matching = [run for run in runs if run in matching or run.digest() in needed]
    if not matching:
        rows = list(dict.fromkeys(run.row for run in runs))
        raise BadExperiment(f"no row has {words!r} in its name; rows are {'; '.join(rows[:20])}")
    return matching


def slug(name: str) -> str:
    """The name of a run as the name of a file."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-")


def _points(grid: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for key, values in grid.items():
        if not values:
            raise BadExperiment(f"grid: {key} has no values; give a list, e.g. [1, 2]")
    for point in itertools.product(*grid.values()):
        yield dict(zip(grid, point, strict=True))


def _start(experiment: Experiment, folder: Path, dataset: str) -> dict[str, Any]:
    fields = experiment.model_dump(include=set(TrainSettings.model_fields))
    data = experiment.datasets[dataset].data().model_dump()
    for key in ("path", "validation_path"):
        if data[key] is not None and data["source"] != "hub":
            data[key] = str(_absolute(data[key], folder))
    before = experiment.pretrain and experiment.pretrain.model_dump(exclude_unset=True)
    return {**fields, "data": data, "seeds": experiment.seeds, "pretrain": before}


def _absolute(path: str, folder: Path) -> Path:
    expanded = Path(os.path.expandvars(path)).expanduser()
    return Path(os.path.normpath(folder / expanded))  # an absolute path stays itself; links are not followed


def _seeded(
    fields: dict[str, Any], row: str, dataset: str, labels: dict[str, Any], folder: Path
) -> Iterator[RunSettings]:
    seeds, before = fields["seeds"], fields["pretrain"]
    rest = {key: value for key, value in fields.items() if key not in ("seeds", "pretrain")}
    if rest["start"] is not None:
        near = _absolute(rest["start"], folder)
        rest["start"] = str(near) if near.exists() else rest["start"]
    if not isinstance(seeds, list) or not seeds:
        raise BadExperiment(f"{row}: seeds: give a list of numbers, e.g. [0, 1, 2]")
    for seed in seeds:
        named = {**rest, "row": row, "dataset": dataset, "labels": labels, "seed": seed}
        if before is not None:
            named |= {"before": _before(checked(Pretraining, before, f"{row}: pretrain"), named, folder), "start": None}
        yield checked(RunSettings, named, row)


def _before(how: Pretraining, run: Mapping[str, Any], folder: Path) -> RunSettings:
    """The run that trains the model first: its model and data, another task and schedule."""
    data = {**run["data"], **how.data}
    for key in ("path", "validation_path"):
        if how.data.get(key) is not None and data["source"] != "hub":
            data[key] = str(_absolute(data[key], folder))
    fields = {**run, **how.model_dump(), "data": data, "row": f"{run['row']}: pretraining", "save_models": True}
    fields["labels"] = {**run["labels"], "dataset": f"{run['dataset']}, pretraining"}
    return checked(RunSettings, fields, fields["row"])


def _with_before(run: RunSettings, runs: list[RunSettings]) -> list[RunSettings]:
    """The run, after the one it starts from unless an earlier one is the same; then it starts from that."""
    if run.before is None:
        return [run]
    digest = run.before.digest()
    same = next((other for other in runs if other.digest() == digest), None)
    return [run.before, run] if same is None else [run.model_copy(update={"before": same})]


def _require_apart(runs: list[RunSettings]) -> None:
    seen: dict[str, str] = {}
    for run in runs:
        place = slug(run.name)
        if place in seen:
            raise BadExperiment(f"two runs would be called {run.name!r}; give variants other names, and seeds once")
        seen[place] = run.name


def _require_rows(experiment: Experiment, runs: list[RunSettings]) -> None:
    """Numbers of others that belong to no row would silently not be shown."""
    rows = list(dict.fromkeys(run.row for run in runs))
    for row in experiment.published.rows if experiment.published else ():
        if row not in rows:
            raise BadExperiment(f"published: there is no row {row!r}; rows are called like {rows[0]!r}")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

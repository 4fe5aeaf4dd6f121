"""Ctrl-C and a polite kill, at any moment: nothing is left half-written."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from slimformer import probe
from terminal import compress, done, files, furnish, refused, slimformer


@pytest.fixture(autouse=True)
def trusting(monkeypatch):
    """Reloading in a fresh process takes seconds and is tested elsewhere."""
    monkeypatch.setattr("slimformer.checkpoint.save.verify_reload", lambda *_: None)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Models and data, read by all tests and changed by none."""
    return furnish(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="module")
def stats(shelf):
    done("calibrate", shelf / "llama", "--data", shelf / "text.txt", "--tokens", 600, "--out", shelf / "stats", "-q")
    return shelf / "stats"


@pytest.fixture(scope="module")
def plan(stats, shelf):
    done("plan", stats, "--macs", 0.6, "--out", shelf / "plan.json", "-q")
    return shelf / "plan.json"


class Alarm:
    """Progress that sends a signal to this very process when a stage begins."""

    def __init__(self, stage, number, monkeypatch):
        self.stage, self.number = stage, number
        monkeypatch.setattr("slimformer.cli.progress_bars", self)

    def __call__(self, _err, *, hidden):
        return self

    def __enter__(self):
        def progress(stage, _done, _total):
            if stage == self.stage:
                os.kill(os.getpid(), self.number)

        return progress

    def __exit__(self, *_):
        return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", ["calibrate", "profile", "probe", "apply", "evaluate", "save and verify"])
def test_a_signal_leaves_nothing(stage, number, shelf, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    Alarm(stage, number, monkeypatch)
    said = slimformer(*compress(shelf / "llama", shelf, tmp_path / "new" / "x"))
    assert said.code == 128 + number
    assert said.out == ""
    assert (
        said.err
        == f"slimformer: {'interrupted' if number == signal.SIGINT else 'terminated'}; nothing is left half-written\n"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["tmp"]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(
    "where", ["slimformer.checkpoint.save.write_model", "slimformer.checkpoint.save.verify_reload"]
)
def test_a_signal_while_saving_keeps_what_was_there(where, shelf, tmp_path, monkeypatch):
    done(*compress(shelf / "llama", shelf, tmp_path / "x", "-q"))
    before = files(tmp_path)
    monkeypatch.setattr(where, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    said = slimformer(*compress(shelf / "llama", shelf, tmp_path / "x", "--macs", 0.4, "--force"))
    assert (said.code, said.out) == (130, "")
    assert files(tmp_path) == before


@pytest.mark.parametrize("stage", ["calibrate", "profile", "probe"])
def test_a_signal_leaves_no_statistics(stage, shelf, tmp_path, monkeypatch):
    Alarm(stage, signal.SIGINT, monkeypatch)
    said = slimformer(
        "calibrate", shelf / "llama", "--data", shelf / "text.txt", "--tokens", 600, "--out", tmp_path / "s"
    )
    assert (said.code, said.out) == (130, "")
    assert not list(tmp_path.iterdir())


def test_a_signal_leaves_no_plan_and_no_half_of_a_curve(stats, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(stats, tmp_path / "stats", ignore=shutil.ignore_patterns("curves-*")))
    before = files(tmp_path)
    Alarm("profile", signal.SIGINT, monkeypatch)
    assert slimformer("plan", folder, "--macs", 0.6, "--out", tmp_path / "plan.json").code == 130
    assert files(tmp_path) == before


def test_progress_is_shown_until_something_goes_wrong(shelf, tmp_path, monkeypatch):
    said = done(*compress(shelf / "llama", shelf, tmp_path / "x"))
    for stage in ("calibrate", "profile", "probe", "apply", "evaluate", "save and verify"):
        assert stage in said.err
    monkeypatch.setattr(probe, "knee", lambda _curve: 40)
    assert "calibration tokens span" in refused(*compress(shelf / "llama", shelf, tmp_path / "y", "--tokens", 30))

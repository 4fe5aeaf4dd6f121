"""Ctrl-C and a polite kill, at any moment: nothing is left half-written."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import slimformer as package
from conftest import SHARED, skip_or_fail
from slimformer.errors import SlimformerError
from terminal import compress, done, files, refused, slimformer

pytestmark = pytest.mark.usefixtures("trusting", "interruptible")


@pytest.fixture
def interruptible():
    """A suite in the background of a script (nohup, CI) starts with Ctrl-C ignored, and so would all it runs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Alarm:
    """Progress that sends a signal to this very process when a stage begins."""

    def __init__(self, stage, number, monkeypatch):
        self.stage, self.number = stage, number
        monkeypatch.setattr("slimformer.cli.terminal._progress", self)

    def __call__(self, *, hidden):
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
    how = "interrupted" if number == signal.SIGINT else "terminated"
    *notes, line = said.err.splitlines()
    assert line == f"slimformer: {how}; nothing is left half-written"
    assert all(note.startswith("note: ") for note in notes), notes
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

    def fails(*_: object, **__: object) -> None:
        raise SlimformerError("it goes wrong here")

    monkeypatch.setattr("slimformer.steps.make.make_plan", fails)
    assert "it goes wrong here" in refused(*compress(shelf / "llama", shelf, tmp_path / "y"))


# The whole program in a terminal of its own. Progress appears a moment after a stage has begun, so the moment is rough.


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    shown: str


def in_a_terminal(arguments, folder, *, stop_at=None, number=signal.SIGINT):
    """Run the real command; when `stop_at` is shown, do what Ctrl-C does: signal the whole group of processes."""
    (folder / "tmp").mkdir(parents=True)
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("slimformer")), *map(str, arguments)]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment, cwd=folder, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # how Linux says that nobody writes any more
        while part := os.read(ours, 65_536):
            shown += part
            if stop_at and stop_at in shown:
                os.killpg(child.pid, number)
                stop_at = None
    os.close(ours)
    out, _ = child.communicate()
    return Ended(child.returncode, out, re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown).decode())


def stories():
    folder = SHARED / "models" / "stories260K"
    if not folder.is_dir():
        skip_or_fail(f"the development model in {folder} is absent")
    if not Path(sys.executable).with_name("slimformer").exists():
        skip_or_fail("the command slimformer is not installed beside this Python")
    return folder


@pytest.mark.parametrize("stage", [b"calibrate", b"evaluate", b"save and verify"])
def test_ctrl_c_leaves_nothing(stage, tmp_path):
    arguments = ["compress", stories(), "--macs", 0.6, "--tokens", 4000, "--out", "new/small"]
    ended = in_a_terminal(arguments, tmp_path, stop_at=stage)
    assert ended.code == 130, ended
    assert ended.out == b""
    lines = [line for line in re.split(r"[\r\n]+", ended.shown) if line.strip()]
    assert lines[-1] == "slimformer: interrupted; nothing is left half-written"
    assert sum("slimformer: " in line for line in lines) == 1
    assert "Traceback" not in ended.shown
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert not list((tmp_path / "tmp").glob("slimformer-*"))


def test_the_real_command_writes_a_model_that_loads(tmp_path):
    ended = in_a_terminal(
        ["compress", stories(), "--macs", 0.6, "--tokens", 4000, "--out", "small", "--json"], tmp_path
    )
    assert ended.code == 0, ended
    report = json.loads(ended.out)
    assert report["macs_kept"] <= 0.6
    assert ended.shown == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "tmp"]
    assert not list((tmp_path / "tmp").glob("slimformer-*"))
    model = package.load(tmp_path / "small")
    assert sum(parameter.numel() for parameter in model.parameters()) == report["small"]["params"]

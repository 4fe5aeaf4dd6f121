"""How far the work is: lines where there is no terminal, bars of tqdm from Python, nothing where nothing is wanted."""

from __future__ import annotations

import io
import re
import sys

import pytest

from slimformer.cli.terminal import showing_progress
from slimformer.messages.arguments import check_arguments
from slimformer.messages.progress import Lines, Progress, clock, shown, silent
from terminal import PROGRESS, compress, done, refused

pytestmark = pytest.mark.usefixtures("trusting")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def lines_of(steps: list[tuple[str, int, int]], each: float = 1.0) -> list[str]:
    """What is written for these steps, each of which takes that many seconds."""
    written: list[str] = []
    time = Clock()
    lines = Lines(written.append, time)
    for step in steps:
        lines(*step)
        time.seconds += each
    return [" ".join(line.split()) for line in written]


def test_a_line_when_a_stage_begins_and_for_every_tenth():
    said = lines_of([("calibrate", i, 200) for i in range(201)])
    assert [line.split()[1] for line in said] == [str(10 * i) for i in range(11)]
    assert said[0] == "calibrate 0 % 0:00:00 elapsed"
    assert said[1] == "calibrate 10 % 0:00:20 elapsed, 0:03:00 left"
    assert said[-1] == "calibrate 100 % 0:03:20 elapsed"


def test_stages_have_their_own_clocks_and_may_begin_again():
    said = lines_of([("a", 0, 2), ("b", 0, 1), ("b", 1, 1), ("a", 1, 2), ("a", 2, 2), ("a", 0, 2)], each=60)
    assert said == [
        "a 0 % 0:00:00 elapsed", "b 0 % 0:00:00 elapsed", "b 100 % 0:01:00 elapsed",
        "a 50 % 0:03:00 elapsed, 0:03:00 left", "a 100 % 0:04:00 elapsed", "a 0 % 0:00:00 elapsed",
    ]  # fmt: skip


def test_nothing_to_do_is_done():
    assert lines_of([("none", 0, 0)]) == ["none 100 % 0:00:00 elapsed"]
    assert clock(3600 * 25 + 61) == "25:01:01"


def test_without_a_terminal_every_stage_has_lines(shelf, tmp_path):
    said = done(*compress(shelf / "llama", shelf, tmp_path / "x"))
    lines = [line for line in said.err.splitlines(keepends=True) if PROGRESS.fullmatch(line)]
    stages = {re.split(r" +\d+ %", line)[0].strip() for line in lines}
    assert stages >= {"calibrate", "profile", "probe", "apply", "evaluate", "save and verify"}
    for stage in stages:
        assert sum(line.strip().startswith(f"{stage} ") and " 100 % " in line for line in lines) >= 1, stage


@pytest.mark.parametrize("how", ["--quiet", "--json"])
def test_nothing_is_said_where_nothing_is_wanted(how, shelf, tmp_path):
    assert done(*compress(shelf / "llama", shelf, tmp_path / "x", how)).err == ""


def test_lines_are_written_at_once(monkeypatch):
    class Watched(io.StringIO):
        flushed = ""

        def flush(self) -> None:
            Watched.flushed = self.getvalue()

    monkeypatch.setattr(sys, "stderr", Watched())
    with showing_progress(hidden=False) as progress:
        progress("calibrate", 1, 4)
        assert "calibrate  25 %" in Watched.flushed


def test_of_several_processes_the_first_speaks(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    with showing_progress(hidden=False) as progress:
        progress("calibrate", 1, 4)
    assert capsys.readouterr().err == ""


def test_an_error_comes_after_the_lines(shelf, tmp_path, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "it goes wrong here")

    monkeypatch.setattr("slimformer.steps.make.make_plan", fails)
    assert "it goes wrong here" in refused(*compress(shelf / "llama", shelf, tmp_path / "y"))


# From Python


@check_arguments
def work(*, progress: Progress = silent) -> Progress:
    for i in range(4):
        progress("stage", i, 3)
    return progress


def test_true_shows_a_bar_for_each_stage(capsys):
    work(progress=True)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "stage: 100%" in said and "3/3" in said


def test_false_and_nothing_are_silent_and_a_function_is_called(capsys):
    work(progress=False)  # type: ignore[arg-type]
    work()
    heard: list[tuple[str, int, int]] = []

    def mine(*step: object) -> None:
        heard.append(step)  # type: ignore[arg-type]

    assert work(progress=mine) is mine
    assert heard == [("stage", i, 3) for i in range(4)]
    assert capsys.readouterr().err == ""


def test_bars_are_closed_when_the_work_fails(capsys):
    with pytest.raises(ZeroDivisionError), shown(True) as progress:
        progress("stage", 1, 3)
        raise ZeroDivisionError
    assert not progress.open or all(bar.disable for bar in progress.open.values())  # type: ignore[attr-defined]

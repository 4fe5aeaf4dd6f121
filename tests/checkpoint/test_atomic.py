"""Folders and files appear whole or not at all, and nothing one would regret is replaced."""

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slimformer.checkpoint import atomic
from slimformer.checkpoint.atomic import require_free, require_free_file, writing, writing_file
from slimformer.errors import CannotWrite, OutputExists

Writing = Callable[..., AbstractContextManager[Path]]


def _fill(partial: Path, text: str = "new") -> None:
    path = partial / "plan.json" if partial.is_dir() else partial
    path.write_text(json.dumps({"slimformer_plan": text}))


def _model(folder: Path, text: str = "old") -> Path:
    folder.mkdir(parents=True)
    _fill(folder, text)
    return folder


@pytest.fixture(params=[writing, writing_file], ids=["folder", "file"])
def write(request: pytest.FixtureRequest) -> Writing:
    return request.param


def test_nothing_is_seen_before_it_is_whole(tmp_path: Path, write: Writing) -> None:
    target = tmp_path / "deep" / "er" / "out"
    with write(target, force=False) as partial:
        _fill(partial)
        assert not target.exists() and partial.parent == target.parent
    assert os.listdir(target.parent) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_in_the_middle_leaves_nothing(tmp_path: Path, write: Writing, error: type[BaseException]) -> None:
    with pytest.raises(error), write(tmp_path / "made" / "out", force=False) as partial:
        _fill(partial)
        raise error
    assert os.listdir(tmp_path) == []


def test_an_error_in_the_middle_leaves_the_old_one(tmp_path: Path) -> None:
    target = _model(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt), writing(target, force=True) as partial:
        _fill(partial)
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["out"] and "old" in (target / "plan.json").read_text()


def test_an_old_one_comes_back_when_the_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, rename = _model(tmp_path / "out"), os.rename

    def fail_for_new(source: Path, destination: Path) -> None:
        if "partial" in Path(source).name:
            raise OSError(errno.EBUSY, "busy")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fail_for_new)
    with pytest.raises(CannotWrite, match="in use"), writing(target, force=True) as partial:
        _fill(partial)
    assert os.listdir(tmp_path) == ["out"] and "old" in (target / "plan.json").read_text()


def test_what_exists_is_refused_before_the_work(tmp_path: Path, write: Writing) -> None:
    with write(tmp_path / "out", force=False) as partial:
        _fill(partial)
    with pytest.raises(OutputExists, match=r"exists already; .* force=True"), write(tmp_path / "out", force=False):
        pytest.fail("the work has begun")


def test_what_appears_during_the_work_is_not_overwritten(tmp_path: Path, write: Writing) -> None:
    with pytest.raises(OutputExists), write(tmp_path / "out", force=False) as partial:
        _fill(partial)
        _model(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"] and "old" in (tmp_path / "out" / "plan.json").read_text()


RESULTS = [
    {"cascade.json": {"slimformer_cascade": 1}},
    {"plan.json": {"slimformer_plan": 1}},
    {"stats.json": {"slimformer_stats": 1}},
    {},
]


@pytest.mark.parametrize("inside", RESULTS)
def test_force_replaces_results_and_empty_folders(tmp_path: Path, inside: dict[str, dict[str, object]]) -> None:
    target = tmp_path / "out"
    target.mkdir()
    for name, content in inside.items():
        (target / name).write_text(json.dumps(content))
        (target / "rest").write_text("x")
    with writing(target, force=True) as partial:
        _fill(partial)
    assert os.listdir(target) == ["plan.json"] and os.listdir(tmp_path) == ["out"]


def test_force_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("old")
    with writing_file(tmp_path / "plan.json", force=True) as partial:
        partial.write_text("new")
    assert (tmp_path / "plan.json").read_text() == "new" and os.listdir(tmp_path) == ["plan.json"]


def test_force_spares_a_folder_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    with pytest.raises(OutputExists, match="neither empty nor a result of slimformer"):
        require_free(tmp_path / "photos", True)


def test_force_spares_a_model_that_slimformer_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(OutputExists, match="neither empty nor"):
        require_free(tmp_path, True)


def test_force_spares_a_project_that_happens_to_have_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"port": 8080}')
    with pytest.raises(OutputExists, match="neither empty nor"):
        require_free(tmp_path, True)


def test_force_spares_a_git_repository(tmp_path: Path) -> None:
    (_model(tmp_path / "out") / ".git").mkdir()
    with pytest.raises(OutputExists, match="git repository"):
        require_free(tmp_path / "out", True)


def test_force_spares_links(tmp_path: Path) -> None:
    _model(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "lost").symlink_to("nowhere")
    for name in ("link", "lost"):
        with pytest.raises(OutputExists, match="it is a link"):
            require_free(tmp_path / name, True)
        with pytest.raises(OutputExists, match="it is a link"):
            require_free_file(tmp_path / name, True)


def test_force_spares_a_file_where_a_folder_is_meant_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputExists, match="it is a file"):
        require_free(tmp_path / "file", True)
    with pytest.raises(OutputExists, match="it is a folder"):
        require_free_file(_model(tmp_path / "folder"), True)


@pytest.mark.parametrize("path", [".", "..", "../{name}"])
def test_force_spares_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    here = _model(_model(tmp_path / "up") / "here")
    monkeypatch.chdir(here)
    with pytest.raises(OutputExists, match="current working directory"):
        require_free(Path(path.format(name=here.name)), True)


def test_force_spares_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(_model(tmp_path / "home")))
    with pytest.raises(OutputExists, match="home directory"):
        require_free(tmp_path / "home", True)


def test_a_path_through_a_file_is_refused_before_the_work(tmp_path: Path, write: Writing) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CannotWrite, match="file is a file"), write(tmp_path / "file" / "out", force=False):
        pytest.fail("the work has begun")


def _in_a_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process, which ends without any cleaning up but its own."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def _interrupted(target: Path, number: int) -> None:
    """Begin to write in another process and end it by a signal."""

    def work() -> None:
        with writing(target, force=False) as partial:
            _fill(partial)
            (target.parent / "begun").touch()
            time.sleep(30)

    pid = _in_a_child(work)
    while not (target.parent / "begun").exists():
        time.sleep(0.01)
    os.kill(pid, number)
    os.waitpid(pid, 0)
    (target.parent / "begun").unlink()


def test_a_polite_kill_leaves_nothing(tmp_path: Path) -> None:
    _interrupted(tmp_path / "out", signal.SIGTERM)
    assert os.listdir(tmp_path) == []


def test_what_a_hard_kill_leaves_is_no_result_and_the_next_run_sweeps_it(tmp_path: Path) -> None:
    _interrupted(tmp_path / "out", signal.SIGKILL)
    left = os.listdir(tmp_path)
    assert len(left) == 1 and left[0].startswith(".out.partial-")
    with writing(tmp_path / "out", force=False) as partial:
        _fill(partial)
    assert os.listdir(tmp_path) == ["out"]


def test_what_another_living_process_writes_is_not_swept(tmp_path: Path) -> None:
    other = atomic._beside(tmp_path / "out", "partial", pid=os.getppid())
    other.mkdir()
    with writing(tmp_path / "out", force=False) as partial:
        _fill(partial)
    assert other.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB, where one may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_in_one_line(small_disk: Path, write: Writing) -> None:
    with (
        pytest.raises(CannotWrite, match="the disk is full") as caught,
        write(small_disk / "out", force=False) as partial,
    ):
        (partial / "x" if partial.is_dir() else partial).write_bytes(bytes(200_000))
    assert os.listdir(small_disk) == [] and "\n" not in str(caught.value)


def test_a_read_only_disk_is_said_in_one_line(small_disk: Path, write: Writing) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CannotWrite, match=r"read-only|not writable"), write(small_disk / "out", force=False):
        pytest.fail("the work has begun")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_locked_folder_is_said_before_the_work(tmp_path: Path, write: Writing) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CannotWrite, match="not writable"), write(tmp_path / "out", force=False):
        pytest.fail("the work has begun")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "x"), "the disk is full"),
        (OSError(errno.EACCES, "x"), "permission denied"),
        (OSError(errno.EROFS, "x"), "read-only"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "the disk is full"),
    ],
)
def test_what_the_disk_says_becomes_one_line(tmp_path: Path, write: Writing, error: Exception, words: str) -> None:
    with pytest.raises(CannotWrite, match=words), write(tmp_path / "out", force=False):
        raise error
    assert os.listdir(tmp_path) == []


def test_other_errors_stay_what_they_are(tmp_path: Path, write: Writing) -> None:
    with pytest.raises(OSError, match="strange"), write(tmp_path / "out", force=False):
        raise OSError(errno.ECHILD, "strange")

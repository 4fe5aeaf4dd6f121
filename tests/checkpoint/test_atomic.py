"""Folders and files appear whole or not at all, and nothing one would regret is replaced."""

import errno
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from slimformer.checkpoint import atomic
from slimformer.checkpoint.atomic import require_free, require_free_file, revising, writing, writing_file
from slimformer.errors import CannotWrite, FileChanged, OutputExists
from slimformer.files import manifest
from slimformer.files.content import PLAN

Writing = Callable[..., AbstractContextManager[Path]]


def _fill(partial: Path, text: str = "new") -> None:
    path = partial / "plan.json" if partial.is_dir() else partial
    path.write_text(json.dumps({"slimformer_plan": text}))


def _model(folder: Path, text: str = "old") -> Path:
    with _folder(folder, force=False) as partial:
        _fill(partial, text)
        (partial / "moments").mkdir()
        (partial / "moments" / "block-000.safetensors").write_bytes(bytes(1000))
    return folder


def _folder(path: Path, *, force: bool) -> AbstractContextManager[Path]:
    return writing(path, "checkpoint", force=force)


def _file(path: Path, *, force: bool) -> AbstractContextManager[Path]:
    return writing_file(path, force=force, kind=PLAN)


@pytest.fixture(params=[_folder, _file], ids=["folder", "file"])
def write(request: pytest.FixtureRequest) -> Writing:
    return request.param


def test_nothing_is_seen_before_it_is_whole(tmp_path: Path, write: Writing) -> None:
    target = tmp_path / "deep" / "er" / "out"
    with write(target, force=False) as partial:
        _fill(partial)
        assert not target.exists() and partial.is_relative_to(target.parent)
    assert os.listdir(target.parent) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_in_the_middle_leaves_nothing(tmp_path: Path, write: Writing, error: type[BaseException]) -> None:
    with pytest.raises(error), write(tmp_path / "made" / "out", force=False) as partial:
        _fill(partial)
        raise error
    assert os.listdir(tmp_path) == []


def test_an_error_in_the_middle_leaves_the_old_one(tmp_path: Path) -> None:
    target = _model(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt), _folder(target, force=True) as partial:
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
    with pytest.raises(CannotWrite, match="in use"), _folder(target, force=True) as partial:
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
        _model(tmp_path / "other").rename(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"] and "old" in (tmp_path / "out" / "plan.json").read_text()


@pytest.mark.parametrize("empty", [False, True])
def test_force_replaces_results_and_empty_folders(tmp_path: Path, empty: bool) -> None:
    target = tmp_path / "out"
    if empty:
        target.mkdir()
    else:
        _model(target)
    with _folder(target, force=True) as partial:
        _fill(partial)
    assert sorted(os.listdir(target)) == ["plan.json", "slimformer.json"] and os.listdir(tmp_path) == ["out"]


def test_force_replaces_a_file_of_the_same_kind_and_no_other(tmp_path: Path) -> None:
    _fill(tmp_path / "plan.json", "old")
    with _file(tmp_path / "plan.json", force=True) as partial:
        _fill(partial)
    assert "new" in (tmp_path / "plan.json").read_text() and os.listdir(tmp_path) == ["plan.json"]
    for text in ("\\documentclass{article}", '{"slimformer_front": 1}', '["slimformer_plan"]', "[" * 100_000):
        (tmp_path / "thesis.tex").write_text(text)
        with (
            pytest.raises(OutputExists, match="it is not a plan of slimformer"),
            _file(tmp_path / "thesis.tex", force=True),
        ):
            pytest.fail("the work has begun")
        assert (tmp_path / "thesis.tex").read_text() == text


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


OTHERS: dict[str, Callable[[Path], object]] = {
    "notes.txt": lambda folder: (folder / "notes.txt").write_text("x"),
    "checkpoints/step-1/model.pt": lambda folder: _tree(folder / "checkpoints" / "step-1" / "model.pt"),
    "plan.json": lambda folder: _fill(folder, "mine"),
    "moments/block-000.safetensors": lambda folder: (folder / "moments/block-000.safetensors").write_bytes(
        bytes(999) + b"\1"
    ),
    "link": lambda folder: (folder / "link").symlink_to(folder.parent),
    "again": lambda folder: _model(folder / "again"),
}


def _tree(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("x")


def _snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", OTHERS)
def test_force_spares_what_users_put_into_a_result_or_change_in_it(tmp_path: Path, name: str) -> None:
    target = _model(tmp_path / "out")
    OTHERS[name](target)
    before = _snapshot(tmp_path)
    with pytest.raises(OutputExists, match=f"did not write, or what has been changed since: {name};"):
        require_free(target, True)
    with pytest.raises(OutputExists), _folder(target, force=True):
        pytest.fail("the work has begun")
    assert _snapshot(tmp_path) == before


def test_what_is_put_into_a_result_during_the_work_survives(tmp_path: Path) -> None:
    target = _model(tmp_path / "out")
    with pytest.raises(OutputExists, match=r"a, b, c and 2 more;"), _folder(target, force=True) as partial:
        _fill(partial)
        for name in "abcde":
            (target / name).write_text("x")
    assert (target / "e").read_text() == "x" and "old" in (target / "plan.json").read_text()


def test_what_is_put_into_a_result_while_it_is_replaced_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and the rename there is a moment that nothing can close."""
    target, rename = _model(tmp_path / "out"), os.rename

    def late(source: Path, destination: Path) -> None:
        rename(source, destination)
        if ".old-" in Path(destination).name:
            (Path(destination) / "late.txt").write_text("x")

    monkeypatch.setattr(os, "rename", late)
    with _folder(target, force=True) as partial:
        _fill(partial)
    monkeypatch.undo()
    assert [path.read_text() for path in tmp_path.rglob("late.txt")] == ["x"]
    with _folder(target, force=True) as partial:  # nor does the next run take it
        _fill(partial)
    assert [path.read_text() for path in tmp_path.rglob("late.txt")] == ["x"]


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, '{"slimformer_files": 1, "files": {"../x": 1}}'])
def test_a_list_that_is_none_makes_no_result(tmp_path: Path, content: str) -> None:
    target = _model(tmp_path / "out")
    (target / "slimformer.json").write_text(content)
    with pytest.raises(OutputExists, match="neither empty nor a result of slimformer"):
        require_free(target, True)
    with pytest.raises(FileChanged, match=r"slimformer.json, the list .* cannot be read"):
        manifest.require_unchanged(target, "plan.json")


def test_a_pipe_in_the_place_of_a_list_is_not_waited_for(tmp_path: Path) -> None:
    target = _model(tmp_path / "out")
    (target / "slimformer.json").unlink()
    os.mkfifo(target / "slimformer.json")
    with pytest.raises(OutputExists, match="neither empty nor a result of slimformer"):
        require_free(target, True)
    with pytest.raises(FileChanged, match="a pipe"):
        manifest.require_unchanged(target, "plan.json")


def test_a_list_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    target, outside = _model(tmp_path / "out"), tmp_path / "outside"
    outside.write_text("x")
    entry = {"bytes": 1, "sha256": manifest.sha256(outside)}
    for name in ("../outside", str(outside), "a/../../outside"):
        (target / "slimformer.json").write_text(
            json.dumps({"slimformer_files": 1, "kind": "x", "files": {name: entry}, "results": []})
        )
        with pytest.raises(FileChanged, match="cannot be read"):
            manifest.remove_listed(target)
    assert outside.exists()


def test_a_result_within_a_result_has_its_own_list(tmp_path: Path) -> None:
    with _folder(tmp_path / "out", force=False) as partial:
        _fill(partial)
        _model(partial / "small")
    with revising(tmp_path / "out" / "small", "plan.json") as file:
        _fill(file, "revised")
    require_free(tmp_path / "out", True)
    (tmp_path / "out" / "small" / "mine").write_text("x")
    with pytest.raises(OutputExists, match="small/mine"):
        require_free(tmp_path / "out", True)
    (tmp_path / "out" / "small" / "mine").unlink()
    with _folder(tmp_path / "out", force=True) as partial:
        _fill(partial)
    assert os.listdir(tmp_path) == ["out"] and sorted(os.listdir(tmp_path / "out")) == ["plan.json", "slimformer.json"]


def test_a_result_may_grow_and_change_and_stays_one(tmp_path: Path) -> None:
    target = _model(tmp_path / "out")
    for _ in range(2):
        for name in ("plan.json", "curves.json"):
            with revising(target, name) as file:
                file.write_text(f"{name} {time.perf_counter()}")
            manifest.require_unchanged(target, "*")
            require_free(target, True)
    assert sorted(os.listdir(target)) == ["curves.json", "moments", "plan.json", "slimformer.json"]


def test_a_changed_file_stays_the_users_when_it_is_revised(tmp_path: Path) -> None:
    target = _model(tmp_path / "out")
    _fill(target, "mine")
    with revising(target, "plan.json") as file:
        file.write_text("mine, and more")
    with pytest.raises(OutputExists, match=r"plan\.json"):
        require_free(target, True)


def test_a_folder_without_a_list_gets_none(tmp_path: Path) -> None:
    (tmp_path / "curves.json").write_text("old")
    with revising(tmp_path, "curves.json") as file:
        file.write_text("new")
    assert os.listdir(tmp_path) == ["curves.json"] and (tmp_path / "curves.json").read_text() == "new"


@pytest.mark.parametrize("work", ["replace", "revise", "write a file"])
def test_a_kill_at_any_step_loses_nothing_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """A process ends at its n-th call that changes the disk; what was there is there, or what takes its place is."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # a kill is no power cut
    target, foreign = tmp_path / "out", tmp_path / ".out.partial-elsewhere"
    _tree(foreign / "thesis.tex")
    ways: dict[str, Callable[[], AbstractContextManager[Path]]] = {
        "replace": lambda: _folder(target, force=True),
        "revise": lambda: revising(target, "plan.json"),
        "write a file": lambda: _file(target / "plan.json", force=True),
    }

    def change() -> None:
        with ways[work]() as place:
            _fill(place)

    ended = False
    for step in itertools.count():
        if ended:
            break
        _model(target)
        _, status = os.waitpid(_in_a_child(lambda step=step: _dying(change, step)), 0)
        ended = status == 0
        require_free(target, True) if work != "write a file" else None  # a result, with nothing of a user's in it
        assert json.loads((target / "plan.json").read_text())["slimformer_plan"] in ("old", "new")
        change()
        assert "new" in (target / "plan.json").read_text() and not list(target.glob(".*"))
        assert sorted(os.listdir(tmp_path)) == [foreign.name, "out"] and (foreign / "thesis.tex").exists()
        shutil.rmtree(target)
    assert step > 5


def _dying(work: Callable[[], None], step: int) -> None:
    """Do it, and end without any cleaning up at the call of that number."""
    left = [step]

    def watch(event: str, _arguments: object) -> None:
        if event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir"} or (event == "open" and "w" in str(_arguments)):
            if not left[0]:
                os._exit(1)
            left[0] -= 1

    sys.addaudithook(watch)
    work()


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
            require_free_file(tmp_path / name, True, PLAN)


def test_force_spares_a_file_where_a_folder_is_meant_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputExists, match="it is a file"):
        require_free(tmp_path / "file", True)
    with pytest.raises(OutputExists, match="it is a folder"):
        require_free_file(_model(tmp_path / "folder"), True, PLAN)


@pytest.mark.parametrize("path", [".", "..", "../{name}"])
def test_force_spares_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    here = _model(_model(tmp_path / "up") / "here")  # one result in another
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
        with _folder(target, force=False) as partial:
            _fill(partial)
            (target.parent / "begun").touch()
            signal.pause()

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
    with _folder(tmp_path / "out", force=False) as partial:
        _fill(partial)
    assert os.listdir(tmp_path) == ["out"]


def test_what_another_living_process_writes_is_not_swept(tmp_path: Path) -> None:
    other = atomic._sibling(tmp_path / "out", "partial", os.getppid())
    other.mkdir()
    with _folder(tmp_path / "out", force=False) as partial:
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


def _fill_up(path: Path) -> None:
    """Let there be no room left."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(512)):
            pass


def test_no_room_for_the_list_of_files_is_a_full_disk(small_disk: Path) -> None:
    with pytest.raises(CannotWrite, match="the disk is full"), _folder(small_disk / "out", force=False) as partial:
        for n in range(100):
            (partial / f"file-{n}").touch()
        _fill_up(partial / "rest")
    assert os.listdir(small_disk) == []


def test_no_room_for_a_longer_list_leaves_a_result_as_it_was(small_disk: Path) -> None:
    with _folder(small_disk / "out", force=False) as partial:
        for n in range(40):
            (partial / f"file-{n}").touch()
    before = _snapshot(small_disk)
    with pytest.raises(CannotWrite, match="the disk is full"), revising(small_disk / "out", "curves.json") as file:
        file.touch()
        _fill_up(small_disk / "others")
    (small_disk / "others").unlink()
    assert _snapshot(small_disk) == before
    require_free(small_disk / "out", True)


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


def test_two_threads_do_not_write_one_result(tmp_path: Path, write: Writing) -> None:
    """The draft of another thread has the same name and is no leftover."""
    target = tmp_path / "out"
    said = []

    def second() -> None:
        try:
            with write(target, force=True) as partial:
                _fill(partial, "second")
        except CannotWrite as error:
            said.append(str(error))

    with write(target, force=True) as partial:
        _fill(partial, "first")
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert said and "another thread" in said[0]
    assert "first" in (target / "plan.json" if target.is_dir() else target).read_text()
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_system_that_cannot_flush_folders_or_lock_still_takes_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    flushed = os.fsync

    def fsync(place: int) -> None:
        if stat.S_ISDIR(os.fstat(place).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flushed(place)

    def flock(*_: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(fcntl, "flock", flock)
    target = _model(tmp_path / "out")
    with revising(target, "plan.json") as file:
        file.write_text("new")
    require_free(target, True)


def test_a_working_directory_that_is_gone_is_in_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, gone = _model(tmp_path / "out"), tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    require_free(target, True)

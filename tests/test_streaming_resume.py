"""What is left of a run that was stopped: gone on with only if it belongs to what is asked for and can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from families import VOCABULARY, tiny
from slimformer.compress import compress_streamed
from slimformer.errors import CannotWrite, OutputExists
from slimformer.steps import memory as promise
from slimformer.steps import streaming_job
from slimformer.steps.streaming_job import job_for, work_folder

ROOM = 8 * 10**9
IDS = torch.randint(5, VOCABULARY, (24, 8), generator=torch.Generator().manual_seed(3))
HOW: dict[str, Any] = {"memory": ROOM, "macs": 0.5, "recipe": "uniform", "refine": False, "verify": False}


class Stopped(BaseException):
    """Raised where a run is to end."""


def run(model: Path, folder: Path, *, stage: str = "calibrate", blocks: int = 1, ids: torch.Tensor = IDS) -> list[str]:
    """Compress until so many blocks are through a stage; what was said."""
    said: list[str] = []

    def progress(now: str, done: int, _total: int) -> None:
        if (now, done) == (stage, blocks):
            raise Stopped

    with pytest.raises(Stopped):
        compress_streamed(model, folder, ids, progress=progress, say=said.append, **HOW)
    return said


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny("llama").save_pretrained(tmp_path / "dense")
    return tmp_path / "dense"


def other_norm(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))


def other_weight(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name] = tensors[name] * (1 + 1e-6)  # the same in bfloat16
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return change


@pytest.mark.parametrize(
    "change", [other_norm, other_weight("lm_head.weight"), other_weight("model.layers.0.mlp.down_proj.weight")]
)
def test_another_model_starts_anew(model, tmp_path, change):
    run(model, tmp_path / "small")
    assert run(model, tmp_path / "small", blocks=2)[-1].startswith("going on with")
    change(model)
    assert run(model, tmp_path / "small")[-1].startswith("working in")


def test_other_inputs_start_anew_and_another_moment_does_not(model, tmp_path, monkeypatch):
    monkeypatch.setattr(promise, "BATCHES", (4, 2))
    run(model, tmp_path / "small")
    monkeypatch.setattr(promise, "BATCHES", (8, 4, 2))  # as if there were more room now
    assert run(model, tmp_path / "small", blocks=2)[-1].startswith("going on with")
    others = IDS.flip(1).contiguous()
    assert run(model, tmp_path / "small", ids=others)[-1].startswith("working in")


@pytest.mark.parametrize(
    "torn",
    ["notes/calibrate.*", "states/fit-00000.dense.*", "statistics/stats.json", "statistics/moments/block-000.*"],
)
def test_what_cannot_be_read_of_a_walk_is_done_again(model, tmp_path, torn):
    run(model, tmp_path / "small")
    for path in work_folder(tmp_path / "small").glob(torn):
        path.write_bytes(b"{")
    said = run(model, tmp_path / "small", stage="profile", blocks=0)
    assert said[-1].endswith("starting anew")
    assert torn.partition("/")[0] in said[-1]


@pytest.mark.parametrize("torn", ["blocks/block-000-1.safetensors", "blocks/block-000-1.json", "notes/profile*"])
def test_what_cannot_be_read_of_the_cut_is_done_again(model, tmp_path, torn):
    run(model, tmp_path / "small", stage="apply")
    for path in work_folder(tmp_path / "small").glob("statistics/curves*"):
        path.unlink()  # a copy of what is noted
    for path in work_folder(tmp_path / "small").glob(torn):
        path.write_bytes(b"{")
    assert run(model, tmp_path / "small", blocks=2)[-1].endswith("starting anew")


def test_a_note_that_is_missing_between_others_starts_anew(model, tmp_path):
    """What a walk would go on with are the states of later blocks."""
    run(model, tmp_path / "small", blocks=2)
    (work_folder(tmp_path / "small") / "notes" / "calibrate.00000.json").unlink()
    assert run(model, tmp_path / "small")[-1].endswith("starting anew")


def test_files_of_others_in_a_work_folder_survive(tmp_path):
    (work_folder(tmp_path / "out") / "theirs").mkdir(parents=True)
    (work_folder(tmp_path / "out") / "lock").write_text("mine")
    with pytest.raises(OutputExists, match="holds something else"), job_for(tmp_path / "out", {}):
        pytest.fail("the work has begun")
    assert (work_folder(tmp_path / "out") / "lock").read_text() == "mine"
    with job_for(tmp_path / "other", {}) as job:
        (job.folder / "states").mkdir()
        (job.folder / "mine.txt").write_text("x")
    assert [path.name for path in work_folder(tmp_path / "other").iterdir()] == ["mine.txt"]


def test_a_kill_while_the_work_is_removed_blocks_nobody(tmp_path, monkeypatch):
    remove = streaming_job.shutil.rmtree

    def killed(path: Path) -> None:
        remove(path)
        raise KeyboardInterrupt

    def leave() -> None:
        with job_for(tmp_path / "small", {"a": 1}) as job:
            for name in ("statistics", "blocks", "states"):
                (job.folder / name).mkdir(exist_ok=True)
                (job.folder / name / "x").write_text("")
            job.finish("calibrate", 0.5)

    monkeypatch.setattr(streaming_job.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        leave()
    monkeypatch.undo()
    with job_for(tmp_path / "small", {"a": 1}) as job:
        assert job.resumed
        assert job.done("calibrate") == 0  # what is half removed is not gone on with
    assert not work_folder(tmp_path / "small").exists()


def test_too_little_disk_is_refused_before_the_work(model, tmp_path, monkeypatch):
    monkeypatch.setattr(promise.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 1000}))
    with pytest.raises(CannotWrite, match=r"about .* of disk in .*\.small\.streaming, and 1 kB are free there"):
        compress_streamed(model, tmp_path / "small", IDS, **HOW)
    assert not work_folder(tmp_path / "small").exists()

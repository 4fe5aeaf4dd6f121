"""Runs are recorded as the report has them, and a tracker that is not there is known before the work."""

from __future__ import annotations

import builtins
import importlib.util
import json
import sys

import pytest

from conftest import skip_or_fail
from families import LENGTH
from slimformer.errors import TrackerNotFound
from slimformer.report.track import TRACKERS, run_of, tracker
from terminal import compress, done, refused

REPORT = {
    "model": "/home/someone/models/mine", "model_type": "llama", "recipe": "balanced", "format": "ragged",
    "budget": 0.5, "budget_by": "macs", "macs_kept": 0.49, "seq_len": LENGTH,
    "dense": {"params": 10}, "small": {"params": 6}, "latency": None, "seconds": {"apply": 1.5},
    "metrics": [{"name": "kl", "dense": 0.0, "small": 0.25, "low": None, "high": None}],
    "sites": [
        {"site": f"blocks.{b}.ffn.hidden", "block": b, "kind": "ffn.hidden", "keep": 8 * (b + 1)} for b in range(2)
    ],
    "correction": [
        {"site": "blocks.1.ffn.hidden", "before": 0.5, "after": 0.25},
        {"site": "final norm", "before": 0.1, "after": 0.1},
    ],
    "data": {"name": "/home/someone/secret.txt", "hash": "abc", "seed": 3}, "versions": {"torch": "2"},
}  # fmt: skip


def test_a_run_has_the_numbers_of_the_report_and_tells_no_places():
    run = run_of("compress", REPORT)
    assert run.numbers["kl/small"] == 0.25 and run.numbers["small/params"] == 6 and run.numbers["seconds/apply"] == 1.5
    assert run.by_block[1] == {
        "kept/ffn.hidden": 16, "error/ffn.hidden/before": 0.5, "error/ffn.hidden/after": 0.25
    }  # fmt: skip
    assert run.settings["data_seed"] == 3 and run.settings["recipe"] == "balanced"
    assert "someone" not in json.dumps(vars(run))
    assert run.name.startswith("compress-mine-0.49-")
    assert "/" not in run_of("eval", {**REPORT, "model": "owner/<name>"}).name


TASK = {
    "slimformer_task": 1, "task": "squad_v2", "dense": "/home/someone/dense", "small": "./someone/small",
    "data": "/home/someone/dev.json", "files": ["/home/someone/dev.json"], "examples": 4, "unit": "questions",
    "notes": ["/home/someone"], "settings": {"seq_len": 32, "best_thresholds": {"F1": {"dense": 1.0}}},
    "metrics": [{"name": "F1 (answerable)", "better": "higher", "level": 0.95, "dense": 50.0, "small": 0.0, "p": 0.5,
                 "recovery": None}],
}  # fmt: skip
MEASURED = {"phase": "decode", "batch": 4, "ratio": 0.75, "small_peak_bytes": 8}
BENCH = {
    "slimformer_bench": 1, "dense": "/home/someone/dense", "small": "owner/small", "device": "cpu", "threads": 2,
    "seq_len": 16, "new_tokens": 4, "repeats": 3, "warmup": 1, "unit": "tokens", "measurements": [MEASURED],
    "weights_bytes": {"dense": 10, "small": 6}, "kv_cache_bytes": {"dense": 4, "small": 3},
}  # fmt: skip


def test_tasks_and_serving_are_runs_too():
    run = run_of("eval", TASK)
    assert run.numbers == {f"squad_v2/F1_answerable/{key}": x for key, x in (("dense", 50), ("small", 0), ("p", 0.5))}
    assert run.settings["settings/best_thresholds/F1/dense"] == 1
    assert run.name.startswith("eval-small-squad_v2-")
    served = run_of("bench", BENCH)
    assert served.numbers == {
        "decode/batch_4/ratio": 0.75, "decode/batch_4/small_peak_bytes": 8, "dense/weights_bytes": 10,
        "small/weights_bytes": 6, "dense/kv_cache_bytes": 4, "small/kv_cache_bytes": 3,
    }  # fmt: skip
    assert served.settings["threads"] == 2 and served.name.startswith("bench-owner-small-")
    assert "someone" not in json.dumps([vars(run), vars(served)])


class Notebook:
    """A stand-in with the calls of trackio 0.43 and wandb 0.31 that are used, with their own parameter names."""

    def __init__(self):
        self.logged, self.summary, self.begun, self.done = [], {}, None, False

    def init(self, project=None, *, name=None, config=None, mode=None):
        self.begun = (project, name, config, mode)
        return self

    def log(self, metrics, step=None):
        self.logged.append((step, metrics))

    def finish(self):
        self.done = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finish()


@pytest.mark.parametrize("name", ["trackio", "wandb"])
@pytest.mark.parametrize(("kind", "found"), [("compress", REPORT), ("eval", TASK), ("bench", BENCH)])
def test_the_calls_of_the_trackers(name, kind, found, monkeypatch):
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, name, notebook)
    monkeypatch.setattr("slimformer.report.track._installed", lambda _name: True)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    tracker(name)(kind, found)
    run = run_of(kind, found)
    kept = notebook.summary if name == "wandb" else notebook.logged[-1][1]
    assert kept == run.numbers
    assert [values for _, values in notebook.logged][: len(run.by_block)] == run.by_block
    assert notebook.begun[0] == "slimformer" and notebook.begun[3] == ("offline" if name == "wandb" else None)
    assert notebook.done


def test_no_tracker_records_nothing_and_an_unknown_one_is_refused():
    tracker(None)("compress", REPORT)
    with pytest.raises(TrackerNotFound, match="choose from trackio, wandb, tensorboard"):
        tracker("notes")


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_one_line_before_the_work(name, monkeypatch, shelf, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    line = refused(*compress(shelf / "llama", shelf, tmp_path / "out", "--track", name))
    assert f"--track {name} needs the package {name}" in line and f"slimformer[{name}]" in line
    assert not (tmp_path / "out").exists()


def test_a_folder_called_like_a_tracker_is_no_package(monkeypatch, tmp_path):
    """wandb leaves a folder of its own name behind, which Python would import."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    if importlib.util.find_spec("wandb").origin is None:
        with pytest.raises(TrackerNotFound):
            tracker("wandb")


def test_tensorboard_holds_the_numbers(monkeypatch, tmp_path, capsys):
    if importlib.util.find_spec("tensorboard") is None:
        skip_or_fail("tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    tracker("tensorboard")("compress", REPORT)
    (folder,) = (tmp_path / "runs").iterdir()
    found = EventAccumulator(str(folder))
    found.Reload()
    numbers = run_of("compress", REPORT).numbers
    assert {name: found.Scalars(name)[0].value for name in numbers} == pytest.approx(numbers)
    assert [event.value for event in found.Scalars("kept/ffn.hidden")] == [8, 16]
    assert capsys.readouterr().out == ""


def test_compress_and_eval_record_what_they_print(trusting, shelf, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setitem(
        TRACKERS, "trackio", lambda run: (seen.update({run.name.split("-")[0]: run}), builtins.print("hi"))
    )
    monkeypatch.setattr("slimformer.report.track._installed", lambda _name: True)
    out = tmp_path / "out"
    said = done(*compress(shelf / "llama", shelf, out, "--track", "trackio", "--json"))
    assert json.loads(said.out)["macs_kept"] == seen["compress"].numbers["macs_kept"]
    said = done(
        "eval", out, "--against", shelf / "llama", "--data", shelf / "text.txt", "--tokens", 600, "--no-timing",
        "--json", "--track", "trackio",
    )  # fmt: skip
    kl = next(metric for metric in json.loads(said.out)["metrics"] if metric["name"] == "kl")
    assert seen["eval"].numbers["kl/small"] == kl["small"]
    text = shelf / "text.txt"
    asked = ("eval", out, "--against", shelf / "llama", "--task", "wikitext2", "--data", text, "--seq-len", 32)
    said_of_task = json.loads(done(*asked, "--samples", 4, "--json", "--track", "trackio").out)
    assert seen["eval"].numbers["wikitext2/perplexity/small"] == said_of_task["metrics"][0]["small"]
    quick = ("--batch-sizes", 1, "--seq-len", 8, "--new-tokens", 2, "--repeats", 1)
    served = json.loads(done("bench", out, "--against", shelf / "llama", *quick, "--json", "--track", "trackio").out)
    assert seen["bench"].numbers["small/kv_cache_bytes"] == served["kv_cache_bytes"]["small"]

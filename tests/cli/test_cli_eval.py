"""`eval --task` and `bench`: an object for programs, a table for people, a record in the report, a line for errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from terminal import compress, done, refused, save_tiny, texts, write_texts

pytestmark = pytest.mark.usefixtures("trusting")


@pytest.fixture(scope="module")
def smaller(shelf, tmp_path_factory):
    """The LLaMA on the shelf, compressed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slimformer.checkpoint.save.verify_reload", lambda *_: None)
        folder = tmp_path_factory.mktemp("made") / "smaller"
        done(*compress(shelf / "llama", shelf, folder, "-q", "--no-refine"))
    return folder


def test_a_task_is_scored_shown_and_recorded(smaller, shelf, tmp_path):
    text = tmp_path / "ptb.test.txt"
    text.write_text("\n".join(texts(30, seed=9)))
    asked = ("eval", smaller, "--against", shelf / "llama", "--task", "ptb-new", "--data", tmp_path, "--seq-len", 32)
    found = json.loads(done(*asked, "--json", "--record").out)
    assert found["slimformer_task"] == 1
    assert found["examples"] > 5
    (metric,) = found["metrics"]
    assert metric["name"] == "perplexity"
    assert 0 < metric["p"] <= 1
    report = json.loads((smaller / "report.json").read_text())
    assert report["tasks"]["ptb-new"] == found
    assert report["slimformer_report"] == 1
    before = (smaller / "report.html").read_bytes()
    done("report", smaller)  # the page was made anew with the record
    assert (smaller / "report.html").read_bytes() == before
    assert b"ptb-new" in before
    said = done(*asked).out
    assert "recovery" in said
    assert re.match(r"measured on [0-9]+ windows of \S*ptb.test.txt", said.replace("\n", ""))  # a long path is wrapped
    assert done(*asked, "-q").out == ""


def test_a_model_that_was_cut_from_statistics_gains_what_is_measured_later(shelf, tmp_path):
    stats, folder = tmp_path / "stats", tmp_path / "cut"
    done(
        "calibrate",
        shelf / "llama",
        "--data",
        shelf / "text.txt",
        "--tokens",
        600,
        "--seq-len",
        16,
        "--out",
        stats,
        "-q",
    )
    done("cut", stats, "--macs", 0.6, "--out", folder, "-q")
    assert "perplexity" not in (folder / "README.md").read_text()
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()} == {0o666 & ~_umask()}
    asked = ("eval", folder, "--against", shelf / "llama", "--no-timing", "--record")
    found = json.loads(done(*asked, "--json").out)
    report = json.loads((folder / "report.json").read_text())
    assert report["metrics"] == found["metrics"] and report["budget"] == 0.6
    page, card = (folder / "report.html").read_bytes(), (folder / "README.md").read_text()
    assert "perplexity" in card and b"perplexity" in page
    (folder / "README.md").write_text("mine")
    done(*asked, "-q")
    assert (folder / "README.md").read_text() == "mine"
    assert "leave --data" in refused(*asked, "--data", shelf / "text.txt")


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def test_data_that_were_calibrated_on_are_noted(smaller, shelf, tmp_path):
    text = shelf / "text.txt"
    asked = ("eval", smaller, "--against", shelf / "llama", "--task", "wikitext2", "--data", text, "--seq-len", 32)
    notes = json.loads(done(*asked, "--json").out)["notes"]
    assert any("was calibrated on" in note for note in notes)
    noted = [
        any(
            "was calibrated on" in note
            for note in json.loads(done(*asked[:7], folder, *asked[8:], "--json").out)["notes"]
        )
        for folder in (_linked(text, tmp_path / "one", "test.txt"), _linked(text, tmp_path / "two", "train.txt"))
    ]
    assert noted == [True, False], "the file that is read counts, not the folder it lies in"


def _linked(file: Path, folder: Path, name: str) -> Path:
    """A folder in which `file` goes by another name, beside a text of its own to evaluate on."""
    folder.mkdir()
    (folder / "test.txt").write_text("\n".join(texts(30, seed=7)))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(file)
    return folder


def test_serving_is_measured_shown_and_recorded(smaller, shelf):
    asked = ("bench", smaller, "--against", shelf / "llama", "--batch-sizes", "1,2", "--seq-len", 16, "--repeats", 2)
    found = json.loads(done(*asked, "--new-tokens", 2, "--threads", 1, "--json", "--record").out)
    assert [(m["phase"], m["batch"]) for m in found["measurements"]] == [
        ("prefill", 1), ("decode", 1), ("prefill", 2), ("decode", 2)
    ]  # fmt: skip
    assert found["threads"] == 1
    assert found["kv_cache_bytes"]["small"] < found["kv_cache_bytes"]["dense"]
    assert json.loads((smaller / "report.json").read_text())["bench"] == found
    assert "1 thread on cpu" in " ".join(done(*asked, "--threads", 1).out.split())


def test_bad_input_is_one_line(smaller, shelf, tmp_path):
    pair = (smaller, "--against", shelf / "llama")
    assert "choose from sst2" in refused("eval", *pair, "--task", "imdb")
    assert "no file or folder" in refused("eval", *pair, "--task", "ptb", "--data", tmp_path / "none")
    assert "does not mark answers" in refused("eval", *pair, "--task", "squad", "--data", tmp_path)
    assert "one --data" in refused("eval", *pair, "--task", "ptb", "--data", "a.txt", "--data", "b.txt")
    assert "--eval-data" in refused("eval", *pair, "--task", "ptb", "--eval-data", "b.txt")
    assert "choose from trackio" in refused("eval", *pair, "--task", "ptb", "--track", "notes")
    assert "choose from trackio" in refused("bench", *pair, "--track", "notes")
    for option in (("--tokens", 9), ("--no-timing",)):
        assert "--samples" in refused("eval", *pair, "--task", "ptb", *option)
    assert "--new-tokens" in refused("bench", *pair, "--new-tokens", 5000)
    assert "whole numbers" in refused("bench", *pair, "--batch-sizes", "1,x")
    assert "no report" in refused("bench", shelf / "llama", "--against", shelf / "llama", "--record")
    assert "give the model it came from" in refused("bench", smaller, "--against", shelf / "gpt2")
    reader = save_tiny(tmp_path / "reader", "bert", "answer")
    (tmp_path / "odd.json").write_text('[{"question": "w5", "context": "w6"}]')
    asked = ("eval", reader, "--against", reader, "--task", "squad", "--data", tmp_path / "odd.json")
    assert "no answers" in refused(*asked)


def test_one_example_is_one_line(smaller, shelf):
    asked = ("eval", smaller, "--against", shelf / "llama", "--task", "ptb", "--data", shelf / "text.txt")
    assert "an interval needs 2" in refused(*asked, "--seq-len", 16, "--samples", 1)


def test_the_package_is_a_command_too():
    said = subprocess.run([sys.executable, "-m", "slimformer", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("slimformer ")


def test_models_that_number_their_tokens_otherwise_are_compared_by_text_and_do_not_teach_each_other(tmp_path):
    """As many tokens, and two of them have changed places: the same weights read other words."""
    dense, other = save_tiny(tmp_path / "dense", "llama"), save_tiny(tmp_path / "other", "llama")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words["w7"], words["w8"] = words["w8"], words["w7"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    data = ("--data", write_texts(tmp_path / "text.txt"), "--tokens", 600, "--no-timing")
    metrics = json.loads(done("eval", other, "--against", dense, *data, "--json").out)["metrics"]
    assert [metric["name"] for metric in metrics] == ["bits per byte"]
    assert metrics[0]["small"] != pytest.approx(metrics[0]["dense"], rel=1e-6)
    said = refused("heal", other, "--teacher", dense, "--data", tmp_path / "text.txt", "--out", tmp_path / "healed")
    assert "reads other tokens than" in said and "--heal 10m" in said

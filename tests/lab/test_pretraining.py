"""Pretraining and fine-tuning in one file, and starting from any folder: weights, tokenizer, and what is refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from experiments import BERT, experiment, text_file
from slimformer.lab.feed import open_feed
from slimformer.lab.folder import LabFolder
from slimformer.lab.grid import expand
from slimformer.lab.model import build
from slimformer.lab.settings import load_experiment
from terminal import done, refused, save_tiny, slimformer

TEXTS = {"source": "text", "path": "reviews.json", "max_length": 32, "vocabulary": 200, "columns": ["t"], "label": "s"}
PRETRAIN = {"task": "masked-lm", "steps": 4, "batch_size": 8, "data": {"mask": 0.3}}
FILE = {
    "task": "text-classes", "datasets": {"reviews": TEXTS}, "model": BERT, "steps": 3, "evaluate_every": None,
    "pretrain": PRETRAIN, "variants": {"both": {}, "scratch": {"pretrain": False}},
}  # fmt: skip
QUICK = ("--no-estimate", "-q")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two rates that share a pretraining, one variant without it, two workers."""
    place = tmp_path_factory.mktemp("start")
    text_file(place / "reviews.json")
    path = experiment(place, **FILE, grid={"optimiser.lr": [0.001, 0.002]}, save_models=True)
    done("lab", "run", path, "--out", place / "out", "--workers", 2, *QUICK)
    return place, path


def runs_of(path):
    return expand(load_experiment(path), path.parent)


def test_what_is_pretrained_is_shared_and_stands_first(trained):
    _, path = trained
    runs = runs_of(path)
    assert [run.row for run in runs] == [
        "both, optimiser.lr 0.001: pretraining", "both, optimiser.lr 0.001", "both, optimiser.lr 0.002",
        "scratch, optimiser.lr 0.001", "scratch, optimiser.lr 0.002",
    ]  # fmt: skip
    before = runs[0]
    assert (before.task, before.steps, before.data.mask, before.save_models) == ("masked-lm", 4, 0.3, True)
    assert [run.before for run in runs] == [None, before, before, None, None]
    assert len({run.digest() for run in runs}) == len(runs)


def test_the_next_task_starts_where_pretraining_ended(trained):
    place, path = trained
    before, run, *_ = runs_of(path)
    folder = LabFolder(place / "out")
    feed = open_feed(run, folder.texts)
    start = build(run.task, run.model, feed.facts, folder.start(run)).state_dict()
    left = AutoModelForMaskedLM.from_pretrained(folder.model_folder(before)).state_dict()
    shared = [name for name in left if name in start]
    assert len(shared) > 10 and all(torch.equal(left[name], start[name]) for name in shared)
    own = AutoTokenizer.from_pretrained(folder.model_folder(before))
    assert feed.processor.get_vocab() == own.get_vocab()
    rows = json.loads((place / "out" / "table.json").read_text())["rows"]
    assert "perplexity" in rows[0]["validation"] and "perplexity" not in rows[1]["validation"]


def test_a_row_brings_what_it_starts_from_and_misses_it_when_gone(trained, tmp_path):
    _, path = trained
    chosen = ("--only", "both, optimiser.lr 0.001", *QUICK)
    done("lab", "run", path, "--out", tmp_path / "out", *chosen)
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 2
    shutil.rmtree(tmp_path / "out" / "models")
    said = slimformer("lab", "run", path, "--out", tmp_path / "out", "-q", "--only", "0.002", "--no-estimate")
    assert said.code == 2 and "left no model to start from" in said.err


def test_any_folder_is_a_start(trained, tmp_path):
    place, _ = trained
    text_file(tmp_path / "reviews.json")
    made = next((place / "out" / "models").glob("scratch-optimiser.lr-0.001*"))
    same = {**FILE, "pretrain": None, "model": None, "variants": None, "start": str(made)}
    path = experiment(tmp_path, **same)
    done("lab", "run", path, "--out", tmp_path / "out", *QUICK)
    (run,) = runs_of(path)
    moved = shutil.copytree(made, tmp_path / "moved")
    assert run.model_copy(update={"start": str(moved)}).digest() == run.digest(), "where it stands does not matter"
    other = experiment(tmp_path, "other.yaml", **{**same, "datasets": {"reviews": {**TEXTS, "max_length": 64}}})
    assert "max_position_embeddings of 32" in refused("lab", "run", other, "--dry-run")
    bert = experiment(tmp_path, "bert.yaml", **{**same, "model": {"model_type": "vit"}})
    assert "is a bert, not a vit" in refused("lab", "run", bert, "--dry-run")


def test_a_cut_model_goes_on_learning(tmp_path):
    save_tiny(tmp_path / "dense", "bert", "masked")
    text_file(tmp_path / "reviews.json")
    read = ("--data", tmp_path / "reviews.json", "--columns", "t", "--tokens", "300", "--no-timing")
    done("compress", tmp_path / "dense", "--macs", "0.6", *read, "--out", tmp_path / "small")
    file = experiment(tmp_path, **{**FILE, "pretrain": None, "model": None, "variants": None, "start": "small"})
    done("lab", "run", file, "--out", tmp_path / "out", "-q")
    (result,) = (tmp_path / "out" / "runs").glob("*.json")
    small, dense = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("small", "dense"))
    assert json.loads(result.read_text())["steps"] == 3 and small != dense

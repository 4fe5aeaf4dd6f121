"""Training: it learns, masks only words, asks the same questions twice, and goes on after a kill to the same bits."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal

import pytest
import torch
from safetensors.torch import load_file

from experiments import (
    BERT,
    DIGITS,
    GPT2,
    LONG,
    VIT,
    experiment,
    image_folder,
    kill_after_first_state,
    lasting,
    start,
    text_file,
)
from slimformer.lab.feed import IGNORED, generator, open_feed
from slimformer.lab.grid import expand
from slimformer.lab.masking import Masking
from slimformer.lab.model import build
from slimformer.lab.settings import Optimiser, load_experiment
from slimformer.lab.train import batch_index, make_optimiser, rate, train
from terminal import done, slimformer


def only(tmp_path, **changes):
    (run,) = expand(load_experiment(experiment(tmp_path, **changes)), tmp_path)
    return run


def test_digits_are_learnt_in_seconds(tmp_path):
    model = {**VIT, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 48, "patch_size": 4}
    how = {"model": model, "steps": None, "epochs": 9, "batch_size": 32, "evaluate_every": 1000}
    run = only(tmp_path, datasets={"d": {"source": "digits"}}, optimiser={"lr": 0.005}, **how)
    found, _ = train(run, open_feed(run, tmp_path), tmp_path / "state")
    assert found["validation"]["accuracy"] > 0.85 and found["train"]["loss"] < 0.6
    assert found["q"] == found["examples"] * 10 / found["parameters"]


@pytest.mark.parametrize("task", ["text-classes", "masked-lm", "causal-lm"])
def test_texts_are_learnt(task, tmp_path):
    data = {"source": "text", "path": str(text_file(tmp_path / "a.tsv")), "vocabulary": 120, "max_length": 12}
    if task == "causal-lm":
        data["tokenizer"] = "bpe"
    how = {"steps": 120, "batch_size": 16, "evaluate_every": 20, "optimiser": {"lr": 0.005}}
    model = GPT2 if task == "causal-lm" else BERT
    run = only(tmp_path, task=task, datasets={"d": data}, model=model, **how)
    found, _ = train(run, open_feed(run, tmp_path / "texts"), tmp_path / "state")
    first, last = found["history"][0], found["history"][-1]
    assert ("perplexity" in last) == (task != "text-classes")
    if task == "text-classes":  # a handful to validate on: what is learnt shows in what was learnt from
        assert found["train"]["accuracy"] > 0.9
    else:
        assert last["loss"] < first["loss"]


def test_masks_hide_words_only_and_as_many_as_asked(tmp_path):
    data = {"source": "text", "path": str(text_file(tmp_path / "a.txt")), "vocabulary": 120, "max_length": 12}
    run = only(tmp_path, task="masked-lm", datasets={"d": data}, model=BERT)
    tokenizer = open_feed(run, tmp_path / "texts").processor
    marks = torch.tensor(tokenizer.all_special_ids)
    ids = torch.randint(0, len(tokenizer), (200, 60), generator=generator("ids"))
    ids[:, 50:] = tokenizer.pad_token_id
    shown, labels = Masking.of(tokenizer, 0.15)(ids, generator("draw"))
    asked = labels != IGNORED
    special = torch.isin(ids, marks)
    assert not asked[special].any() and torch.equal(shown[special], ids[special])
    assert torch.equal(labels[asked], ids[asked]) and torch.equal(shown[~asked], ids[~asked])
    assert 0.13 < asked[~special].float().mean() < 0.17
    hidden = shown[asked] == tokenizer.mask_token_id
    assert 0.75 < hidden.float().mean() < 0.85
    assert not torch.isin(shown[asked][~hidden], marks).any()


def test_validation_asks_the_same_questions_every_time(tmp_path):
    data = {"source": "text", "path": str(text_file(tmp_path / "a.txt")), "vocabulary": 120, "max_length": 12}
    run = only(tmp_path, task="masked-lm", datasets={"d": data}, model=BERT)
    feed = open_feed(run, tmp_path / "texts")
    index = torch.arange(4)
    one, two = (feed.load("validation", index, draw) for draw in (None, generator("other")))
    alone = feed.load("validation", index[2:3], None)
    assert torch.equal(one["labels"], two["labels"]) and torch.equal(one["input_ids"], two["input_ids"])
    assert torch.equal(alone["labels"][0], one["labels"][2]), "whatever the size of the batch"
    first, second = (feed.load("train", index, generator("draw", step)) for step in (1, 2))
    assert not torch.equal(first["labels"], second["labels"])


def test_every_epoch_shows_every_example_once_in_a_new_order():
    epochs = [torch.cat([batch_index(0, 5 * e + step, 20, 4) for step in range(5)]) for e in range(2)]
    assert all(sorted(epoch.tolist()) == list(range(20)) for epoch in epochs)
    assert not torch.equal(*epochs)
    assert not torch.equal(batch_index(0, 0, 20, 4), batch_index(1, 0, 20, 4))
    assert len(batch_index(0, 3, 3, 8)) == 3


def test_the_training_part_is_measured_on_examples_of_every_class(tmp_path):
    """Folders are read class by class: the first few would be of one."""
    image_folder(tmp_path / "x", ("train", "val"))
    data = {"d": {"source": "images", "path": "x", "image_size": 8}}
    run = only(tmp_path, datasets=data, train_evaluation=6, batch_size=4, steps=1)
    feed = open_feed(run, tmp_path)
    asked: list[list[int]] = []

    def load(part, index, draw):
        if part == "train" and draw is None:
            asked.append(index.tolist())
        return feed.load(part, index, draw)

    for seed in (0, 1):
        train(run.model_copy(update={"seed": seed}), dataclasses.replace(feed, load=load), tmp_path / "state")
    assert asked[0] == asked[1], "the same for every run"
    assert len(set(asked[0])) == 6 and asked[0] != list(range(6))
    assert len(feed.load("train", torch.tensor(asked[0]), None)["labels"].unique()) == 2


def test_matrices_decay_and_nothing_else():
    facts = {"image_size": 8, "num_channels": 1, "id2label": {0: "a", 1: "b"}, "label2id": {}}
    fields = {"model_type": "minimal", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = build("image-classes", {**fields, "patch_size": 4, "shaped": True, "qk": "symmetric"}, facts)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, still = make_optimiser(model, Optimiser(weight_decay=0.1)).param_groups
    ends = [{names[id(p)].rsplit(".", 1)[-1] for p in group["params"]} for group in (decaying, still)]
    assert {"weight", "triangle", "position_embeddings"} <= ends[0] and {"shape", "cls_token", "bias"} <= ends[1]
    assert not ends[0] & {"shape", "cls_token", "bias"} and still["weight_decay"] == 0


def test_the_rate_goes_up_and_comes_down(tmp_path):
    settings = only(tmp_path, optimiser={"warmup": 0.2}).optimiser
    rates = [rate(settings, step, 50) for step in range(50)]
    assert rates[:10] == [pytest.approx((i + 1) / 10) for i in range(10)]
    assert all(a >= b for a, b in itertools.pairwise(rates[9:])) and rates[-1] < 0.01


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    path = experiment(tmp_path, **LONG)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    process = start("lab", "run", path, "--out", torn, "--no-estimate", "-q")
    state = kill_after_first_state(process, torn)
    assert process.returncode == -signal.SIGKILL and state.is_file() and not state.with_suffix(".json").exists()
    done("lab", "run", path, "--out", torn, "--no-estimate", "-q")
    done("lab", "run", path, "--out", whole, "--no-estimate", "-q")
    results = [json.loads((folder / "runs" / "d-seed-0.json").read_text()) for folder in (whole, torn)]
    assert lasting(results[0]) == lasting(results[1])
    weights = [load_file(folder / "models" / "d-seed-0" / "model.safetensors") for folder in (whole, torn)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not list(torn.rglob("*.partial*")) and not state.exists()


def test_a_loss_that_is_no_number_stops_its_run_and_no_other(tmp_path):
    wild = {"optimiser.lr": 1e30, "optimiser.clip": None, "optimiser.warmup": 0}
    path = experiment(tmp_path, variants={"wild": wild, "tame": {}})
    said = done("lab", "run", path, "--out", tmp_path / "out", "--no-estimate")
    assert "wild, seed 0 stopped: the loss was nan at step" in " ".join(said.err.split())
    rows = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    assert rows[0]["diverged"] and "validation" not in rows[0] and rows[1]["validation"]
    assert "| wild | 0 |" in (table := (tmp_path / "out" / "table.md").read_text()) and "diverged" in table


def test_a_model_that_cannot_be_built_fails_alone(tmp_path):
    path = experiment(tmp_path, variants={"odd": {"hidden_act": "nonsense"}, "even": {}})
    said = slimformer("lab", "run", path, "--out", tmp_path / "out", "--no-estimate", "-q")
    assert said.code == 2 and "odd, seed 0" in said.err and said.err.count("\n") == 1
    assert [file.name for file in (tmp_path / "out" / "runs").glob("*.json")] == ["even-seed-0.json"]


def test_nothing_but_the_settings_decides(tmp_path):
    """Another run before it in the same process, or other settings of the library, change no bit."""
    run = only(tmp_path, **{**DIGITS, "name": "again"})
    feed = open_feed(run, tmp_path)
    first = train(run, feed, tmp_path / "a")[0]
    torch.rand(7)
    second = train(run, feed, tmp_path / "b")[0]
    assert lasting(first) == lasting(second)

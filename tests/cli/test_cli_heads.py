"""probe, match and adapt as a user calls them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

import slimformer
from families import CLASSES
from slimformer.heads.head_file import read_head
from slimformer.heads.match_file import read_match
from terminal import done, refused, save_tiny, texts

pytestmark = pytest.mark.usefixtures("trusting")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Sentences whose length tells the class."""
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    lines = [
        f"{' '.join(text.split()[: 3 + 6 * (i % 2)])}\t{'odd' if i % 2 else 'even'}"
        for i, text in enumerate(texts(120))
    ]
    path.write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return path


def test_probe_saves_a_stock_classifier_and_says_how_good_it_is(shelf, rows, tmp_path):
    how = ("--data", rows, "--eval", rows, "--pool", "cls", "--layer", "2,3", "--seq-len", 16)
    said = done("probe", shelf / "bert", *how, "--out", tmp_path / "out", "--json")
    report = json.loads(said.out)
    assert report["scores"]["examples"] == report["rows"] == 120
    assert len(report["tried"]) == 2
    assert report["saved"] == "BertForSequenceClassification"
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "even", 1: "odd"}
    assert model.config.num_hidden_layers == report["reading"]["layer"]
    assert read_head(tmp_path / "out" / "head.safetensors").classes_.tolist() == ["even", "odd"]
    again = done("probe", shelf / "bert", *how, "--out", tmp_path / "out", "--force")
    assert "confusion" in again.out and f"120 rows of {rows.name}" in again.out
    assert f"measured on {rows.name}: 120 examples" in again.out
    assert "not held-out figures" in again.out


def test_probe_reads_images(shelf, tmp_path):
    how = ("--data", shelf / "images", "--eval", shelf / "images", "--kind", "ridge", "--balanced")
    report = json.loads(done("probe", shelf / "vit", *how, "--out", tmp_path / "out", "--json").out)
    assert report["classes"] == [str(i) for i in range(CLASSES)]
    assert AutoModelForImageClassification.from_pretrained(tmp_path / "out").config.num_labels == CLASSES


def test_probe_of_a_decoder_reads_the_last_token(shelf, rows, tmp_path):
    report = json.loads(
        done("probe", shelf / "gpt2", "--data", rows, "--pool", "last", "--json", "--out", tmp_path / "o").out
    )
    assert report["reading"] == {"pool": "last", "layer": 3}
    assert slimformer.load(tmp_path / "o").config.num_labels == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--pool", "max"], "choose from cls, mean, last or auto"),
        (["--layer", "9"], "layers 1 to 3"),
        (["--layer", "first"], "neither last, auto nor numbers"),
        (["--kind", "svm"], "kind is one of"),
        (["--kind", "random", "--out", "x"], "random features"),
        (["--compare", "--out", "x"], "comparison of two texts"),
        (["--target", "numbers"], "--target classes"),
        (["--label", "nope"], "'nope' is not in"),
        (["--shrinkage", "much"], "or a number"),
        (["--shrinkage", "2"], "from 0 to 1"),
        (["--shrinkage", "nan"], "from 0 to 1"),
        (["--target", "labels"], "auto, classes or numbers"),
        (["--pool", "last", "--out", "x"], "use --pool cls or mean"),
    ],
)
def test_what_probe_refuses(more, message, shelf, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("probe", shelf / "bert", "--data", rows, *more)
    assert not list(tmp_path.iterdir())


def test_match_of_two_files_and_of_two_models(shelf, tmp_path):
    hidden = np.random.default_rng(0).standard_normal((60, 4))
    np.save(tmp_path / "x.npy", hidden @ np.random.default_rng(1).standard_normal((4, 6)))
    np.save(tmp_path / "y.npy", hidden @ np.random.default_rng(2).standard_normal((4, 5)))
    said = done(
        "match", "--source", tmp_path / "x.npy", "--target", tmp_path / "y.npy", "--out", tmp_path / "map", "--json"
    )
    report = json.loads(said.out)
    assert len(report["methods"]) == 5
    assert read_match(tmp_path / "map" / "match.safetensors").method == report["best"]
    pairs = [{"image": f"{shelf}/images/{i % 5}/{i}.png", "caption": f"w{10 + i} w{20 + i}"} for i in range(12)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    how = ("--source", shelf / "vit", "--target", shelf / "bert", "--method", "cca,ridge")
    report = json.loads(done("match", *how, "--data", tmp_path / "pairs.jsonl", "--json").out)
    assert report["pairs"] + report["held_out"] == 12
    assert "name them with --data" in refused("match", *how)
    assert "--method 'magic'" in refused("match", *how[:4], "--data", tmp_path / "pairs.jsonl", "--method", "magic")
    shown = done("match", *how, "--data", tmp_path / "pairs.jsonl").out
    assert "R@1" in shown and "measured on pairs.jsonl: " in shown


def test_adapt_saves_a_model_that_opens(shelf, tmp_path):
    how = ("--data", shelf / "text.txt", "--source-data", shelf / "text.txt", "--tokens", 600)
    for method in ("bohning", "discriminant"):
        said = done("adapt", shelf / "llama", *how, "--method", method, "--out", tmp_path / method, "--json")
        found = json.loads(said.out)["perplexity"]
        assert found["domain"]["after"] < 1.02 * found["domain"]["before"]
        assert slimformer.load(tmp_path / method).lm_head.weight.shape == torch.Size([64, 32])
        assert {name for name in found if name.startswith("builtin: ")}, "other text is measured on"
        assert all(each["documents"] > 1 and "low" in each for each in found.values())
    shown = done("adapt", shelf / "llama", *how).out
    assert "tokens of text.txt" in " ".join(shown.split()) and "builtin: " in shown
    assert "no language-model head" in refused("adapt", save_tiny(tmp_path / "b", "bert", "bare"), *how)
    assert "there is no method" in refused("adapt", shelf / "llama", *how, "--method", "sgd")


def test_adapt_of_an_image_model_is_one_line(shelf, tmp_path):
    line = refused("adapt", shelf / "vit", "--data", shelf / "images", "--out", tmp_path / "out")
    assert "ViTForImageClassification has no language-model head to adapt" in line

"""Fewer bits and more zeros from the shell: what is said, what is on disk, what is refused."""

from __future__ import annotations

import importlib.util
import json

import pytest

import slimformer
from slimformer.evaluate.speed import file_size
from slimformer.models.load import load_model
from slimformer.models.packed import said
from terminal import BRIEF, compress, done, refused

pytestmark = pytest.mark.usefixtures("trusting")
reader = pytest.mark.skipif(
    importlib.util.find_spec("compressed_tensors") is None, reason="the extra quant is not installed"
)


def config(folder):
    return json.loads((folder / "config.json").read_text())


@reader
@pytest.mark.parametrize("method", ["gptq", "nearest"])
def test_a_quantized_folder_is_smaller_and_says_what_it_is(method, shelf, tmp_path):
    command = ("quantize", shelf / "llama", "--group", 32, "--method", method, "--data", shelf / "text.txt")
    found = json.loads(done(*command, *BRIEF, "--out", tmp_path / "four", "--json").out)
    assert found["quantization"]["bits"] == 4 and found["quantization"]["method"] == method
    assert found["small"]["bytes"] <= file_size(tmp_path / "four") < file_size(shelf / "llama")
    assert config(tmp_path / "four")["quantization_config"]["format"] == "pack-quantized"
    assert {metric["name"] for metric in found["metrics"]} >= {"perplexity", "kl"}
    again = done(
        "eval", tmp_path / "four", "--against", shelf / "llama", "--data", shelf / "text.txt", *BRIEF, "--json"
    )
    seen = json.loads(again.out)
    assert seen["metrics"] == found["metrics"], "what was saved is what was measured"
    assert seen["small"]["bytes"] == file_size(tmp_path / "four")


@reader
def test_a_cut_model_in_fewer_bits(shelf, tmp_path):
    cut = json.loads(done(*compress(shelf / "llama", shelf, tmp_path / "cut", "--json", "--no-refine")).out)
    both = json.loads(
        done(*compress(shelf / "llama", shelf, tmp_path / "both", "--bits", 8, "--json", "--no-refine")).out
    )
    assert both["small"]["params"] == cut["small"]["params"] and both["small"]["bytes"] < cut["small"]["bytes"]
    assert both["sites"] == cut["sites"]
    assert load_model(tmp_path / "both").model is not None


@reader
def test_a_size_is_kept_and_says_what_was_tried(shelf, tmp_path):
    size = int(0.8 * file_size(shelf / "llama"))
    arguments = ("compress", shelf / "llama", "--size", f"{size}B", "--data", shelf / "text.txt", *BRIEF, "--no-refine")
    found = json.loads(done(*arguments, "--out", tmp_path / "sized", "--json").out)
    tried = found["sizing"]["candidates"]
    assert {each["bits"] for each in tried} >= {None, 8} and all(each["bytes"] <= size for each in tried)
    assert found["small"]["bytes"] == min(tried, key=lambda each: each["harm"])["bytes"] <= size
    assert file_size(tmp_path / "sized") == found["small"]["bytes"], "the header of the file is in it"


def test_zeros_are_stored_as_zeros(shelf, tmp_path):
    command = ("sparsify", shelf / "llama", "--pattern", "2:4", "--data", shelf / "text.txt", *BRIEF)
    found = json.loads(done(*command, "--out", tmp_path / "sparse", "--json").out)
    assert found["quantization"]["zeros"] == pytest.approx(0.5)
    model = load_model(tmp_path / "sparse").model
    assert not said(model.config)
    weight = model.model.layers[0].mlp.down_proj.weight
    assert bool(((weight == 0).view(len(weight), -1, 4).sum(-1) == 2).all())


@reader
def test_what_is_stored_in_fewer_bits_is_told_from_what_is_not(shelf, tmp_path):
    data = ("--data", shelf / "text.txt", *BRIEF)
    done("quantize", shelf / "llama", "--method", "nearest", *data, "--out", tmp_path / "four")
    line = refused("sparsify", tmp_path / "four", *data, "--out", tmp_path / "sparse")
    assert "sparsify first, then quantize: zeros are kept" in line and not (tmp_path / "sparse").exists()
    command = ("quantize", tmp_path / "four", "--bits", 8, "--method", "nearest", *data, "--out", tmp_path / "eight")
    again = json.loads(done(*command, "--json").out)
    assert again["dense"]["bytes"] == file_size(tmp_path / "four")
    assert again["small"]["bytes"] == file_size(tmp_path / "eight")
    assert any("in fewer bits already" in note for note in again["warnings"])


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (("quantize", "--bits", 5), "5 bits were asked for"),
        (("quantize", "--group", 48), "groups of 48"),
        (("sparsify", "--pattern", "4:2"), "the pattern '4:2' is not understood"),
        (("sparsify", "--pattern", "1.5"), "the pattern '1.5' is not understood"),
        (("sparsify", "--pattern", "4:4"), "the pattern '4:4' sets nothing to zero"),
        (("sparsify", "--pattern", "0"), "the pattern '0' sets nothing to zero"),
    ],
)
def test_what_is_not_offered_is_named(options, wrong, shelf, tmp_path):
    command, *rest = options
    assert wrong in refused(command, shelf / "llama", *rest, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (("--size", "60MB", "--macs", 0.5), "one budget is needed"),
        (("--size", "big"), "'big' is not a size"),
        (("--size", "1B"), "1 bytes were asked for"),
        (("--macs", 0.5, "--bits", 4, "--dry-run"), "not how they are stored; leave --bits out"),
        (("--macs", 0.5, "--bits", 3), "3 bits were asked for"),
        (("--recipe", "depth", "--size", "60MB"), "'depth' takes no --size; give --macs, --params or --latency"),
        (("--recipe", "long-context", "--size", "60MB"), "takes no --size; it keeps every weight"),
        (("--recipe", "lossless", "--size", "60MB"), "takes no --size; it changes no output"),
        (("--macs", 0.5, "--group", 64), "--group says how bits are stored"),
    ],
)
def test_budgets_that_do_not_go_together(more, wrong, shelf, tmp_path):
    command = ("compress", shelf / "llama", "--data", shelf / "text.txt", "--out", tmp_path / "out")
    assert wrong in refused(*command, *more)


@pytest.mark.parametrize(
    ("recipe", "how"),
    [
        ("depth", ("--macs", 0.7, "--set", "depth.by=drop")),
        ("lossless", ()),
        ("long-context", ("--k", 8, "--window", 16, "--keep-exact", 1)),
    ],
)
def test_recipes_that_cut_no_widths_are_stored_in_fewer_bits(recipe, how, shelf, tmp_path):
    """Both are in one report, and the folder opens as what was measured."""
    command = ("compress", shelf / "llama", "--recipe", recipe, "--data", shelf / "text.txt", "--tokens", 600)
    more = ("--bits", 8, "--group", 0, "--no-timing", "--out", tmp_path / "small", "--json")
    found = json.loads(done(*command, *how, *more).out)
    assert found["recipe"] == recipe and found["quantization"]["bits"] == 8
    assert bool(found["lossless"]) == (recipe == "lossless")
    assert bool(found["long_context"]) == (recipe == "long-context")
    assert found["small"]["bytes"] == file_size(tmp_path / "small") < found["dense"]["bytes"]
    small = slimformer.load(tmp_path / "small")
    assert small.config.num_hidden_layers == (2 if recipe == "depth" else 3)


def test_without_the_extra_bits_are_refused_before_the_work(shelf, tmp_path, monkeypatch):
    monkeypatch.setattr("slimformer.checkpoint.pack.find_spec", lambda _name: None)
    (tmp_path / "empty.txt").touch()  # refused where data are read
    said = refused("quantize", shelf / "llama", "--data", tmp_path / "empty.txt", "--out", tmp_path / "out")
    assert "slimformer[quant]" in said

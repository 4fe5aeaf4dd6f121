"""`slimformer export`: a folder that says what it holds, one object for a program, refusals of one line."""

from __future__ import annotations

import json

import pytest
import torch

from families import tiny
from slimformer.export import torch_file
from slimformer.export.graph import Graph, outputs_of, sample
from terminal import done, refused, slimformer


@pytest.fixture(scope="module")
def program(shelf):
    """The BERT on the shelf as a torch program, and what the command said."""
    return json.loads(done("export", shelf / "bert", "--to", "torch", "--out", shelf / "program", "--json").out)


def test_the_folder_says_what_it_holds(program, shelf):
    assert json.loads((shelf / "program" / "export.json").read_text()) == program
    assert program["verified"]
    assert program["difference"]["largest"] <= program["tolerance"] * program["difference"]["scale"]
    assert program["bytes"] == (shelf / "program" / program["file"]).stat().st_size
    assert (shelf / "program" / "tokenizer.json").is_file()


def test_the_program_runs_without_the_package(program, shelf):
    from slimformer import load

    graph = Graph(load(shelf / "bert")).eval()
    inputs = sample(graph.model, 2, 11, seed=3)
    call = torch.export.load(shelf / "program" / program["file"]).module()
    found = call(*(inputs[name] for name in program["inputs"]))
    assert torch.allclose(found[0], outputs_of(graph, inputs)[program["outputs"][0]], atol=1e-4)


def test_a_result_is_replaced_only_when_asked_and_other_folders_never(program, shelf, tmp_path):
    assert "--force" in refused("export", shelf / "bert", "--to", "torch", "--out", shelf / "program")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    said = refused("export", shelf / "bert", "--to", "torch", "--out", tmp_path / "mine", "--force")
    assert "neither empty nor a result" in said
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_an_export_that_fails_leaves_nothing(shelf, tmp_path, monkeypatch):
    other = Graph(tiny("bert", "classify", seed=9)).eval()
    monkeypatch.setattr(
        torch_file, "_fresh", lambda path, graph, seq_len: [outputs_of(other, sample(graph.model, 1, 1))] * 9
    )
    assert refused("export", shelf / "bert", "--to", "torch", "--out", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [
        ("--to", "tflite"),
        ("--to", "torch", "--int8"),
        ("--to", "torch", "--int4"),
        ("--to", "gguf"),
        ("--to", "torch", "--seq-len", 999),
    ],
)
def test_refusals_are_one_line(wrong, shelf, tmp_path):
    refused("export", shelf / "bert", *wrong, "--out", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_help_shows_an_example():
    for command in ("export", "push"):
        assert "Example:" in slimformer(command, "--help").out

"""`slimformer inspect`: weights alone, data, two data sets side by side, figures."""

from __future__ import annotations

import json
import re
import sys

import pytest

from terminal import done, refused, write_texts

BRIEF = ("--tokens", 300, "--sequences", 2)


def test_without_data_only_weights_are_looked_at(shelf):
    found = json.loads(done("inspect", shelf / "llama", "--json").out)
    assert len(found["weights"]) == found["blocks"]
    assert "data" not in found
    assert "values" not in found["weights"][0]
    assert sum(term["value"] for term in found["parameters"]["terms"]) == found["params"]["total"]
    macs = found["macs_per_token"]
    assert macs["attn.projections"] + macs["attn.scores"] == macs["attn.heads"]
    assert macs["attn.heads"] + macs["ffn.hidden"] == macs["blocks"]
    assert "norms before it reads" in found["scale_free_mlp"]["reason"]


def test_ten_lines_matter_and_the_rest_is_asked_for(shelf, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for model in ("llama", "bert"):
        brief, whole = (done("inspect", shelf / model, *more).out for more in ((), ("--verbose",)))
        found = json.loads(done("inspect", shelf / model, "--json").out)
        _title, *lines = brief.strip().splitlines()
        assert len([line for line in lines if line[0] != " "]) <= 9
        assert all(len(line) <= 80 for line in lines)
        assert f"{found['params']['total']:,}" in brief and f"{found['macs_per_token']['blocks']:,}" in brief
        assert "symmetry of W_qk" in whole and "symmetry of W_qk" not in brief
        assert ("also one right" in " ".join(brief.split())) == (model == "bert")


def test_two_data_sets_stand_side_by_side(shelf):
    data = ("--data", shelf / "text.txt", "--data", shelf / "table.tsv", "--lengths", "8,4", *BRIEF)
    found = json.loads(done("inspect", shelf / "bert", *data, "--json").out)
    assert [part["name"] for part in found["data"]] == [str(shelf / "text.txt"), str(shelf / "table.tsv")]
    for part in found["data"]:
        assert [attention["length"] for attention in part["attention"]] == [4, 8]
        assert len(part["activations"]) == found["blocks"]
        assert all(block["mlp_linear"]["r2"] <= block["mlp_linear"]["r2_fit"] <= 1 for block in part["activations"])
    assert found["data"][0]["activations"] != found["data"][1]["activations"]
    assert found["scale_free_mlp"] == {"offered": True, "reason": None}
    said = done("inspect", shelf / "bert", *data).out
    assert "text.txt" in said
    assert "table.tsv" in said


def test_figures_are_pictures_beside_the_numbers(shelf, tmp_path):
    pytest.importorskip("matplotlib")
    done("inspect", shelf / "llama", "--data", shelf / "text.txt", *BRIEF, "--figures", tmp_path / "figures", "-q")
    pictures = sorted(path for path in (tmp_path / "figures").iterdir() if path.suffix == ".png")
    assert len(pictures) >= 9
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert json.loads((tmp_path / "figures" / "inspection.json").read_text())["slimformer_inspection"] == 1
    assert "exists already" in refused("inspect", shelf / "llama", "--figures", tmp_path / "figures")


def test_three_data_sets_are_drawn_and_tables_fit_a_narrow_terminal(shelf, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("COLUMNS", "80")
    files = shelf / "text.txt", shelf / "table.tsv", write_texts(tmp_path / "other.txt", seed=9)
    sets = [part for file in files for part in ("--data", file)]
    said = done("inspect", shelf / "llama", *sets, "--lengths", "8", *BRIEF, "--figures", tmp_path / "figures").out
    assert (tmp_path / "figures" / "attention-layers-8.png").is_file()
    assert not re.search(r"\d…|\(0\.…", said)  # no number is cut short


def test_figures_without_matplotlib_are_refused_before_the_work(shelf, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "figures need matplotlib" in refused("inspect", shelf / "llama", "--figures", tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lengths", "8"], "give --data"),
        (["--data", "builtin", "--lengths", "a"], "not whole numbers"),
        ([part for name in "abcde" for part in ("--data", name)], "up to 4 data sets"),
        (["--data", "builtin", "--lengths", "2"], "fewer than 4 tokens"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(options, message, shelf):
    assert message in refused("inspect", shelf / "llama", *options)


def test_images_have_attention_too(shelf):
    found = json.loads(done("inspect", shelf / "vit", "--data", shelf / "images", *BRIEF, "--json").out)
    assert found["data"][0]["attention"][0]["length"] == found["seq_len"] == 17

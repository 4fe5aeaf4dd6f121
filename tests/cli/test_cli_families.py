"""`slimformer families`: what is known is listed and printed; what is not is refused in one line."""

import json

import pytest

from families import tiny
from slimformer.inspect.proofs import LAWS
from slimformer.models import FAMILIES
from slimformer.models.families import parse_family
from terminal import done, slimformer


def test_every_family_is_listed_with_its_types():
    listed = json.loads(done("families", "ls", "--json").out)
    assert {t for family in listed.values() for t in family["model_types"]} == set(FAMILIES)
    assert "olmo2" in done("families", "ls").out


def test_a_family_is_printed_as_a_file_that_can_be_given_back():
    assert parse_family(done("families", "show", "phi3").out, "here") == FAMILIES["phi3"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (["families", "show", "nix"], "there is no family 'nix'; choose from albert"),
        (["families", "show", "nix.yaml"], "cannot be read: No such file"),
        (["inspect", ".", "--family", "nix.yaml"], "cannot be read: No such file"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(line, reason):
    said = slimformer(*line)
    assert said.code == 2 and reason in said.err and said.err.count("\n") == 1


def test_a_family_is_proved_on_a_model_and_another_is_not(tmp_path):
    tiny("llama").save_pretrained(tmp_path / "dense")
    proofs = json.loads(done("families", "check", "llama", tmp_path / "dense", "--json").out)["proofs"]
    assert {(proof["part"], proof["law"]) for proof in proofs} == {(p, law) for p in ("attn", "ffn") for law in LAWS}
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(done("families", "show", "llama").out.replace("out: mlp.down_proj", "out: self_attn.o_proj"))
    said = slimformer("families", "check", wrong, tmp_path / "dense")
    assert said.code == 2 and "does not hold" in said.err.splitlines()[-1]


def test_what_is_discovered_is_a_file_for_every_command(tmp_path, monkeypatch):
    tiny("gpt2").save_pretrained(tmp_path / "dense")
    monkeypatch.delitem(FAMILIES, "gpt2")
    assert "not supported" in slimformer("inspect", tmp_path / "dense").err
    file = tmp_path / "found.yaml"
    assert "attn, ffn" in done("families", "discover", tmp_path / "dense", "--out", file).out
    said = json.loads(done("inspect", tmp_path / "dense", "--family", file, "--json").out)
    assert said["model_type"] == "gpt2"
    again = slimformer("families", "discover", tmp_path / "dense", "--out", file)
    assert again.code == 2 and "exists already" in again.err

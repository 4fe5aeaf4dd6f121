"""Families are files: read whole, checked field by field, and able to travel with a model."""

import json

import pytest
import torch

import slimformer
from families import LENGTH, VOCABULARY, tiny
from slimformer.checkpoint.save import save
from slimformer.errors import UnknownArchitecture
from slimformer.models import FAMILIES, describe, family_of
from slimformer.models.families import FAMILY_KEY, bring_family, family_yaml, named_family, parse_family, read_family
from slimformer.models.load import load_model, open_for_work
from slimformer.models.opening import Opening

OPT = family_yaml(FAMILIES["opt"])


@pytest.mark.parametrize("name", sorted({family.name for family in FAMILIES.values()}))
def test_a_family_is_its_file(name):
    family = named_family(name)
    assert parse_family(family_yaml(family), "here") == family
    assert all(FAMILIES[model_type] == family for model_type in family.model_types)
    assert family.summary


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (OPT.replace("neurons_key: ffn_dim", "neurons: ffn_dim"), r"stacks.0.parts.1: .*neurons: Unexpected"),
        (OPT.replace("causal: true", "causal: maybe"), "stacks.0.causal: Input should be a valid boolean"),
        (OPT.replace("times: heads", "times: legs"), "Input should be 'heads' or 'kv_heads'"),
        (OPT.replace("- feed_forward:", "- feedforward:"), "a part is `attention: …` or `feed_forward: …`"),
        (OPT.replace("name: opt", "nom: opt"), "name: Field required"),
        (OPT + "parts: [1]\n", "Unexpected keyword argument"),
        ("stacks: [", "while parsing"),
        ("name: x\nmodel_types: [x]\nstacks: []\n", "a family has stacks, and each of them parts"),
    ],
)
def test_what_a_file_gets_wrong_is_said_in_one_line(spoilt, reason):
    with pytest.raises(UnknownArchitecture, match=reason) as refused:
        parse_family(spoilt, "mine.yaml")
    assert "mine.yaml" in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(UnknownArchitecture, match="cannot be read: No such file"):
        read_family(tmp_path / "nix.yaml")


@pytest.fixture
def unknown(monkeypatch):
    """OPT, of which the package knows nothing in this test, and its file."""
    monkeypatch.delitem(FAMILIES, "opt")


def test_a_model_nobody_wrote_down_is_opened_with_its_file_and_takes_it_along(unknown, tmp_path):
    """From folder to smaller folder and back; the second time nobody names the file."""
    file = tmp_path / "opt.yaml"
    file.write_text(OPT)
    model = tiny("opt", "causal", family=parse_family(OPT, ""))
    model.save_pretrained(tmp_path / "dense")
    with pytest.raises(UnknownArchitecture, match=r"type 'opt' are not supported.*families discover MODEL"):
        load_model(tmp_path / "dense", Opening("cpu"))
    ids = torch.randint(5, VOCABULARY, (60, LENGTH), generator=torch.Generator().manual_seed(0))
    result = slimformer.compress(tmp_path / "dense", ids, macs=0.6, tokens=400, timing=False, family=file)
    assert result.report.opening["family"] == str(file)
    result.save(tmp_path / "small")
    again = load_model(tmp_path / "small", Opening("cpu"))
    assert describe(again.model).sites == describe(result.model).sites
    assert json.loads((tmp_path / "small/config.json").read_text())[FAMILY_KEY] == parse_family(OPT, "").to_json()


def test_a_model_in_memory_takes_a_file_as_well(unknown, tmp_path):
    file = tmp_path / "opt.yaml"
    file.write_text(OPT)
    model = tiny("opt", "causal", family=parse_family(OPT, ""))
    with pytest.raises(UnknownArchitecture):
        describe(model)
    assert describe(open_for_work(model, opening=Opening(family=file)).model).family.name == "opt"


def test_a_file_for_another_type_is_refused():
    with pytest.raises(UnknownArchitecture, match="is for models of type opt, and this one is of type 'bert'"):
        bring_family(tiny("bert").config, FAMILIES["opt"])


def test_a_family_the_config_brings_goes_before_that_of_the_package(tmp_path):
    """So that somebody's correction of ours is heard."""
    model = tiny("opt")
    bring_family(model.config, parse_family(OPT.replace("summary:", "summary: mine #"), ""))
    save(model, tmp_path / "same", verify=False)
    assert family_of(load_model(tmp_path / "same", Opening("cpu")).model.config).summary == "mine"

"""A plan is JSON that comes back as it went, and is refused where it does not belong."""

import dataclasses
import json

import pytest

from calibrated import recipe, stock
from families import tiny
from slimformer.errors import PlanDoesNotFit
from slimformer.models import describe
from slimformer.models.architecture import fingerprint
from slimformer.plan import Plan
from slimformer.plan.plan import check_fits


@pytest.fixture
def plan():
    found = stock("llama")
    return dataclasses.replace(found.plan(0.5, recipe()), fingerprint=fingerprint(found.model))


def test_json_and_back_is_the_same_plan(plan, tmp_path):
    assert Plan.from_json(plan.to_json()) == plan
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert Plan.load(tmp_path / "plan.json") == plan


def test_a_plan_says_what_it_was_made_for(plan):
    said = json.loads(plan.to_json())
    assert said["slimformer_plan"] == 1
    assert (said["budget"], said["format"], said["recipe"]) == (0.5, "ragged", "balanced")
    assert said["macs"] <= said["budget"]
    assert [edit["site"] for edit in said["edits"]] == [site.name for site in stock("llama").architecture]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"plan"', "{}", '{"slimformer_plan": 1}', "\x00"])
def test_what_is_not_a_plan_is_refused(text):
    with pytest.raises(PlanDoesNotFit, match="make it with `slimformer plan`"):
        Plan.from_json(text)


def test_another_format_is_refused(plan):
    newer = plan.to_json().replace('"slimformer_plan": 1', '"slimformer_plan": 2')
    with pytest.raises(PlanDoesNotFit, match="not a plan of format 1 \\(found 2\\)"):
        Plan.from_json(newer)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"seq_len": "long"}, "seq_len"),
        ({"absorb_mean": 3}, "absorb_mean"),
        ({"edits": None}, "edits"),
        ({"edits": [{"site": "blocks.0.ffn.hidden"}]}, r"edits\.0\.method"),
        ({"edits": [dict(site="a", method="m", keep="4", of=4, groups=4)]}, r"edits\.0\.keep"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_field_that_is_wrong_is_named(plan, change, where):
    with pytest.raises(PlanDoesNotFit, match=f"cannot be read: {where}: "):
        Plan.from_json(json.dumps({**json.loads(plan.to_json()), **change}))


@pytest.mark.parametrize("broken", ["nowhere.json", "folder", "bytes.json"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, broken):
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanDoesNotFit, match=broken):
        Plan.load(tmp_path / broken)


def test_a_plain_plan_that_keeps_far_less_than_asked_says_so(plan):
    short = dataclasses.replace(plan, format="plain", by="macs", budget=0.9, macs=0.667)
    (note,) = short.notes
    assert "0.9" in note and "0.667" in note and "ragged" in note
    assert not dataclasses.replace(short, macs=0.88).notes
    assert not dataclasses.replace(short, format="ragged").notes


def test_a_plan_fits_its_own_model(plan):
    model = stock("llama").model
    check_fits(plan, describe(model), fingerprint(model))


def test_the_plan_of_another_model_is_refused(plan):
    other = tiny("llama", seed=1)
    with pytest.raises(PlanDoesNotFit, match=f"made for model {plan.fingerprint}, this is {fingerprint(other)}"):
        check_fits(plan, describe(other), fingerprint(other))


def edited(plan, name, **changes):
    edits = tuple(dataclasses.replace(e, **changes) if e.site == name else e for e in plan.edits)
    return dataclasses.replace(plan, edits=edits, fingerprint="")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(site="blocks.9.ffn.hidden"), "names blocks.9.ffn.hidden, which this model does not have"),
        (dict(of=99), "of 99, this model has 4"),
        (dict(keep=5), "keeps 5 of 4, this model has 4"),
        (dict(keep=-1), "keeps -1 of 4"),
        (dict(keep=3, groups=2), "keeps 3 units in 2 groups; legal are 1 in 1, 2 in 1, 2 in 2, 4 in 2"),
        (dict(keep=3, groups=1), "keeps 3 units in 1 groups"),
    ],
)
def test_sizes_the_model_cannot_have_are_refused(plan, changes, message):
    with pytest.raises(PlanDoesNotFit, match=message):
        check_fits(edited(plan, "blocks.1.attn.heads", **changes), describe(stock("llama").model), "")


def test_a_plan_speaks_of_every_site(plan):
    partial = dataclasses.replace(plan, edits=plan.edits[1:], fingerprint="")
    with pytest.raises(PlanDoesNotFit, match=r"says nothing about blocks\.0\.attn\.heads"):
        check_fits(partial, describe(stock("llama").model), "")


def test_the_fingerprint_is_of_the_model_not_of_its_precision_or_head():
    model = tiny("bert")
    assert fingerprint(model) == fingerprint(tiny("bert").double()) == fingerprint(tiny("bert").bfloat16())
    assert fingerprint(model) != fingerprint(tiny("bert", seed=1))
    assert fingerprint(model) != fingerprint(tiny("bert", intermediate_size=56))

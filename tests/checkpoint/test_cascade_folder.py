"""A cascade is one folder: what comes out is what went in, and it is there whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

import slimformer
from families import tiny, tiny_batches, tiny_plan, tiny_tokenizer
from slimformer.checkpoint import cascade as folders
from slimformer.checkpoint.cascade import CascadeRecord, Member, read_record
from slimformer.checkpoint.reload import checksums
from slimformer.checkpoint.save import Belongings
from slimformer.errors import ModelBroken, ModelNotFound, OutputExists, PlanDoesNotFit, SaveFailed
from slimformer.evaluate.routing import at_threshold, paired
from slimformer.models.load import Loaded
from slimformer.plan import Plan
from slimformer.steps.cascade import Cascade, CascadeResult, load_cascade, observe

BATCH = tiny_batches(tiny("bert", "classify"), 1)[0]


def made(threshold: float, model: PreTrainedModel | None = None, dtype: torch.dtype = torch.float32) -> CascadeResult:
    """A cascade of a tiny model and half of it."""
    model = model or tiny("bert", "classify")
    plan, small = tiny_plan(model)
    batches = tiny_batches(model, 1)
    outcomes = paired(observe(small, batches), observe(model, batches))
    macs = (plan.macs, 1.0)
    record = CascadeRecord(None, 16, "abc", Member(0.5, plan.macs), Member(1.0, 1.0), {"inputs": 8})
    point = at_threshold(outcomes, macs, threshold)
    loaded = Loaded("tiny", model, tiny_tokenizer(), None, dtype)
    cascade = Cascade(small, model, threshold, macs)
    return CascadeResult(cascade, record, {"small": plan, "large": None}, outcomes, point, loaded)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(1.2).save(tmp_path_factory.mktemp("whole") / "cascade", verify=False)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "cascade")


@pytest.mark.parametrize("threshold", [0.0, 1.2345678901234567, math.inf])
def test_what_comes_out_is_what_went_in(threshold: float, tmp_path: Path) -> None:
    before = made(threshold)
    after = load_cascade(before.save(tmp_path / "out", verify=False))
    assert os.listdir(tmp_path) == ["out"]
    assert sorted(os.listdir(tmp_path / "out")) == ["cascade.json", "large", "slimformer.json", "small"]
    assert (after.threshold, after.macs) == (threshold, before.cascade.macs)
    assert checksums(after.small) == checksums(before.cascade.small)
    assert checksums(after.large) == checksums(before.cascade.large)
    first, second = (cascade(**BATCH.inputs) for cascade in (before.cascade, after))
    assert torch.equal(first.logits, second.logits) and torch.equal(first.routed, second.routed)


def test_both_parts_are_proved_by_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(0.5).save(tmp_path / "proved")
    assert (tmp_path / "proved" / "cascade.json").exists()

    def damaged(model: PreTrainedModel, folder: Path, belongings: Belongings, **more: object) -> None:
        if folder.name == "large":
            raise SaveFailed("the saved model reloads to other outputs")
        save(model, folder, belongings, **more)

    save = folders.save
    monkeypatch.setattr(folders, "save", damaged)
    with pytest.raises(SaveFailed):
        made(0.5).save(tmp_path / "out", verify=False)
    assert os.listdir(tmp_path) == ["proved"]


def test_each_part_opens_alone(whole: Path) -> None:
    small = slimformer.load(whole / "small")
    assert checksums(AutoModelForSequenceClassification.from_pretrained(whole / "large").eval()) == checksums(
        slimformer.load(whole / "large")
    )
    assert type(small).__name__ == "BertForSequenceClassification"
    assert AutoTokenizer.from_pretrained(whole / "small")("w5")["input_ids"] == [5]
    assert Plan.load(whole / "small" / "plan.json").budget == 0.5 and not (whole / "large" / "plan.json").exists()


def test_weights_are_stored_in_the_precision_of_the_original(tmp_path: Path) -> None:
    before = made(0.5, dtype=torch.bfloat16)
    after = load_cascade(before.save(tmp_path / "half", verify=False))
    assert after.small.dtype == after.large.dtype == torch.bfloat16
    assert before.cascade.small.dtype == torch.float32  # what is in memory stays as it is
    assert load_cascade(tmp_path / "half", dtype=torch.float32).large.dtype == torch.float32


def test_language_models_come_back_too(tmp_path: Path) -> None:
    before = made(1.0, tiny("llama"))
    after = load_cascade(before.save(tmp_path / "out", verify=False))
    batch = tiny_batches(before.cascade.large, 1)[0]
    assert torch.equal(after.score(**batch.inputs).nats, before.cascade.score(**batch.inputs).nats)


def test_another_threshold_is_saved_when_it_was_set(tmp_path: Path) -> None:
    first = made(0.5)
    moved = replace(first, cascade=replace(first.cascade, threshold=0.75))
    assert read_record(moved.save(tmp_path / "out", verify=False)).threshold == 0.75


def test_a_cascade_is_replaced_only_by_force(folder: Path) -> None:
    with pytest.raises(OutputExists):
        made(0.5).save(folder, verify=False)
    assert load_cascade(folder).threshold == 1.2
    made(0.5).save(folder, force=True, verify=False)
    assert load_cascade(folder).threshold == 0.5


def test_the_dense_model_is_not_replaced_by_its_cascade(tmp_path: Path) -> None:
    dense = tmp_path / "dense"
    tiny("bert", "classify").save_pretrained(dense)
    result = made(0.5)
    with pytest.raises(OutputExists, match="read to make the result"):
        replace(result, loaded=replace(result.loaded, folder=dense)).save(dense, force=True, verify=False)
    assert (dense / "model.safetensors").exists()


def test_the_record_is_json_that_says_what_it_means(whole: Path) -> None:
    found = json.loads((whole / "cascade.json").read_text())
    assert found["slimformer_cascade"] == 1 and found["threshold"] == 1.2
    assert found["large"] == {"budget": 1.0, "macs": 1.0} and found["small"]["macs"] <= 0.5
    assert CascadeRecord.from_json((whole / "cascade.json").read_text()) == read_record(whole)


def _edit(**changes: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "cascade.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


DAMAGES = {
    "no JSON": (lambda folder: (folder / "cascade.json").write_text("{"), "cannot be used"),
    "no object": (lambda folder: (folder / "cascade.json").write_text("[]"), "format None"),
    "future format": (_edit(slimformer_cascade=9), "format 9"),
    "negative": (_edit(threshold=-1), "threshold: Input should be greater"),
    "not a number": (_edit(threshold="high"), "threshold"),
    "infinite": (_edit(threshold=math.inf), "Infinity"),
    "other costs": (_edit(small={"budget": 0.5, "macs": 0.123}), "is said to cost 0.1230 of the large one"),
    "unknown field": (_edit(middle={}), "middle"),
    "weights lost": (lambda folder: (folder / "large" / "model.safetensors").unlink(), "holds no weights"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_said_in_one_line(folder: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    (folder / "slimformer.json").unlink()  # as if the change were meant
    damage(folder)
    with pytest.raises((ModelBroken, ModelNotFound), match=words) as caught:
        load_cascade(folder)
    assert "\n" not in str(caught.value)


def test_what_is_no_cascade_is_said_in_one_line(folder: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", folder / "small", folder / "cascade.json"):
        with pytest.raises(ModelNotFound, match="it is not a cascade"):
            load_cascade(place)
    shutil.rmtree(folder / "small")
    with pytest.raises(ModelNotFound, match="there is no folder"):
        load_cascade(folder)


def test_parts_that_do_not_belong_together_are_refused(folder: Path) -> None:
    shutil.rmtree(folder / "large")
    tiny("bert", "classify", num_labels=3).save_pretrained(folder / "large")
    with pytest.raises(PlanDoesNotFit, match="two cuts of one model"):
        load_cascade(folder)

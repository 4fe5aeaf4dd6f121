"""Minimal models as models: saved, loaded, padded, piped, and compressed like those of any family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    ViTImageProcessor,
    pipeline,
)
from typer.testing import CliRunner

import slimformer
from calibrated import calibrated, outputs, recipe
from families import tiny, tiny_batches, tiny_compressed, tiny_ragged, tiny_tokenizer
from slimformer.checkpoint.save import save
from slimformer.cli.app import app
from slimformer.errors import BudgetOutOfReach, PlanDoesNotFit
from slimformer.lab.architectures.minimal_config import QK, VO, block_macs
from slimformer.models import describe
from slimformer.plan.cost import block_cost

FORMS = [*((qk, "full") for qk in QK), *(("collapsed", vo) for vo in VO[1:]), ("symmetric", "none")]
each_form = pytest.mark.parametrize(("qk", "vo"), FORMS)
FIXED = FORMS[1:]


def text_model(**fields) -> torch.nn.Module:
    usual = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "vocab_size": 64,
        "max_position_embeddings": 24,
        "num_labels": 3,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model("minimal", **{**usual, **fields})
    return AutoModelForSequenceClassification.from_config(config).eval()


@each_form
@pytest.mark.parametrize("shaped", [False, True])
def test_what_is_saved_is_loaded(qk, vo, shaped, tmp_path):
    model = tiny("minimal", qk=qk, vo=vo, shaped=shaped, intermediate_size=0)
    model.save_pretrained(tmp_path)
    pixels = tiny_batches(model, 1)[0].inputs
    for again in (AutoModelForImageClassification.from_pretrained(tmp_path), slimformer.load(tmp_path)):
        assert type(again) is type(model)
        assert torch.equal(again.eval()(**pixels).logits, model(**pixels).logits)
    bare = AutoModel.from_pretrained(tmp_path).eval()
    assert torch.equal(bare(**pixels).last_hidden_state, model.minimal(**pixels).last_hidden_state)


@each_form
@pytest.mark.parametrize("more", [{}, {"pool": "cls", "shaped": True}, {"do_layer_norm_before": False}])
def test_padding_on_either_side_changes_nothing(qk, vo, more):
    model = text_model(qk=qk, vo=vo, **more)
    ids = torch.randint(5, 64, (3, 10))
    alone = model(input_ids=ids).logits
    pads, real = torch.full((3, 6), 1), torch.ones(3, 10).long()
    for side in ([ids, pads], [pads, ids]):
        order = [real if part is ids else torch.zeros(3, 6).long() for part in side]
        padded = model(input_ids=torch.cat(side, 1), attention_mask=torch.cat(order, 1)).logits
        torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-4)
        with_other_pads = torch.cat([part if part is ids else part + 7 for part in side], 1)
        again = model(input_ids=with_other_pads, attention_mask=torch.cat(order, 1)).logits
        torch.testing.assert_close(again, alone, atol=1e-5, rtol=1e-4)


def test_the_padding_token_says_where_padding_is_when_nobody_else_does():
    model = text_model(pad_token_id=1)
    ids = torch.randint(5, 64, (2, 9))
    padded = torch.cat([ids, torch.ones(2, 4).long()], 1)
    torch.testing.assert_close(model(input_ids=padded).logits, model(input_ids=ids).logits)


def test_eager_and_fused_attention_agree_on_a_padded_batch():
    model = text_model(qk="symmetric", shaped=True)
    given = {"input_ids": torch.randint(5, 64, (3, 9)), "attention_mask": (torch.arange(9) < 5).long().expand(3, 9)}
    fused = model(**given).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(**given).logits, fused)


def test_pipelines_open_saved_folders(tmp_path):
    tiny("minimal", qk="collapsed", vo="none").save_pretrained(tmp_path / "image")
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "image")
    found = pipeline("image-classification", model=str(tmp_path / "image"))(Image.new("RGB", (20, 20), (90, 9, 200)))
    assert len(found) == 5 and abs(sum(each["score"] for each in found) - 1) < 1e-4
    text_model(qk="symmetric", pad_token_id=1).save_pretrained(tmp_path / "text")
    tiny_tokenizer().save_pretrained(tmp_path / "text")
    both = pipeline("text-classification", model=str(tmp_path / "text"))(["w5 w7", "w9 w8 w7 w6"], batch_size=2)
    assert all(0 < each["score"] <= 1 for each in both)


@pytest.mark.parametrize(("fields", "said"), [
    ({"num_attention_heads": 3}, "do not divide"), ({"qk": "tied"}, "qk"), ({"vo": "none", "head_dim": 4}, "share"),
])  # fmt: skip
def test_configs_that_make_no_sense_are_refused(fields, said):
    with pytest.raises(Exception, match=said):
        AutoConfig.for_model("minimal", **fields)


def test_text_needs_a_vocabulary_and_images_none():
    with pytest.raises(ValueError, match="vocab_size"):
        AutoModelForSequenceClassification.from_config(AutoConfig.for_model("minimal"))
    with pytest.raises(ValueError, match="vocab_size"):
        AutoModelForImageClassification.from_config(AutoConfig.for_model("minimal", vocab_size=9))


@each_form
@pytest.mark.parametrize("neurons", [48, 0])
def test_blocks_cost_what_the_formula_says(qk, vo, neurons):
    model = tiny("minimal", qk=qk, vo=vo, intermediate_size=neurons)
    assert block_cost(describe(model), 17).macs == 3 * block_macs(model.config, 17)


@pytest.mark.parametrize(("qk", "vo"), FIXED)
def test_forms_without_separate_heads_are_cut_in_their_neurons(qk, vo):
    found = calibrated(tiny("minimal", qk=qk, vo=vo))
    small = found.compress(0.75, recipe("balanced"))
    assert [site.units for site in describe(small) if site.kind == "attn.heads"] == [4, 4, 4]
    assert sum(site.units for site in describe(small) if site.kind == "ffn.hidden") < 3 * 48
    assert torch.isfinite(outputs(small, found.data["select"][0])).all()
    plan = found.plan(1.0, recipe("balanced"))
    assert not any(edit.site.endswith((".qk", ".vo")) for edit in plan.edits)


def test_where_nothing_can_be_cut_the_budget_is_refused():
    found = calibrated(tiny("minimal", qk="symmetric", vo="none", intermediate_size=0))
    with pytest.raises(BudgetOutOfReach, match=r"the minimum for this model is 1\.000"):
        found.plan(0.9, recipe("balanced"))
    assert found.architecture.sites[0].fixed.reason.startswith("qk=symmetric, vo=none: heads are cut where")


def test_a_plan_that_cuts_fixed_heads_is_refused():
    from dataclasses import replace

    from slimformer.plan.plan import check_fits

    found = calibrated(tiny("minimal", qk="symmetric"))
    plan = found.plan(1.0, recipe("balanced"))
    edits = tuple(replace(e, keep=2, groups=2) if e.site.endswith("heads") else e for e in plan.edits)
    with pytest.raises(PlanDoesNotFit, match="qk=symmetric"):
        check_fits(replace(plan, edits=edits), found.architecture, plan.fingerprint)


@pytest.mark.parametrize(("format", "fields"), [
    ("ragged", {"qk": "symmetric"}), ("plain", {"vo": "none", "do_layer_norm_before": False}),
    pytest.param("ragged", {}, marks=pytest.mark.slow), pytest.param("plain", {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_compressed_folder_reloads_in_a_fresh_process(format, fields, tmp_path):
    """`save` opens the folder in a process of its own and refuses what gives other outputs."""
    model = tiny("minimal", **fields)
    small = tiny_ragged(model, 0.8) if format == "ragged" else tiny_compressed(model, 0.8, format="plain")
    assert small.num_parameters() < model.num_parameters()
    save(small, tmp_path / "out")
    pixels = tiny_batches(model, 1)[0].inputs
    assert torch.equal(slimformer.load(tmp_path / "out")(**pixels).logits, small(**pixels).logits)
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert ("slimformer" in said) == (format == "ragged") and "auto_map" not in said


def test_a_text_model_goes_through_the_commands(tmp_path: Path):
    """inspect, compress (with the report) and eval, as for any family."""
    model = text_model(pad_token_id=1, num_hidden_layers=2)
    model.save_pretrained(tmp_path / "dense")
    tiny_tokenizer().save_pretrained(tmp_path / "dense")
    words = torch.randint(5, 64, (240, 8), generator=torch.Generator().manual_seed(0)).tolist()
    (tmp_path / "rows.txt").write_text("\n\n".join(" ".join(f"w{i}" for i in row) for row in words))
    dense, data, small = str(tmp_path / "dense"), str(tmp_path / "rows.txt"), str(tmp_path / "small")
    run = CliRunner().invoke
    seen = run(app, ["inspect", dense, "--data", data, "--json", "--seq-len", "8", "--lengths", "8"])
    assert seen.exit_code == 0, seen.output
    found = json.loads(seen.stdout)
    assert found["family"] == "minimal" and len(found["weights"]) == 2
    made = run(app, ["compress", dense, "--data", data, "--macs", "0.8", "--out", small, "--seq-len", "8", "--quiet"])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "small" / "report.html").is_file()
    judged = run(app, ["eval", small, "--against", dense, "--data", data, "--json"])
    assert judged.exit_code == 0, judged.output

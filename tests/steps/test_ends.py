"""The step `ends`: tables of low rank, alone and before other steps, that load like any others."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import slimformer
from families import tiny, tiny_image_processor
from fresh import run as in_fresh_process
from slimformer.errors import BudgetOutOfReach, CannotExport, HeadDoesNotFit, SlimformerError, UnknownMethod
from slimformer.evaluate.report import Report
from slimformer.recipe import Recipe, recipe_of
from slimformer.rewrite.low_rank_ends import is_tied, with_low_rank_ends
from tokenizers_by_kind import WORDS, fallback

TEXTS = [" ".join(WORDS.split()[i % 30 :][: 6 + i % 5]) + f" {i}" for i in range(240)]
IDS = torch.tensor([[3, 40, 7, 250, 9, 12]])
TYPES = ("llama", "gpt2", "opt", "bert", "gemma3_text")  # untied, tied, with positions, with a bias, with scaled rows


def _model(model_type: str = "llama", head: str | None = None) -> tuple[PreTrainedModel, Any]:
    tokenizer = fallback()
    return tiny(model_type, head, vocab_size=len(tokenizer)), tokenizer


def _recipe(*others: dict[str, Any], **ends: Any) -> Recipe:
    return recipe_of("ends", "tables of low rank", {"ends": {"rank": 8, **ends}}, *others)


def _shrunk(model_type: str = "llama", head: str | None = None, **how: Any) -> Any:
    model, tokenizer = _model(model_type, head)
    given = {"tokens": 600, "only_data": True, "timing": False, "recipe": _recipe(), **how}
    return slimformer.compress(model, TEXTS, processor=tokenizer, **given)


def _logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("model_type", TYPES)
def test_a_saved_model_reloads_to_the_same_logits(model_type: str, tmp_path: Path) -> None:
    result = _shrunk(model_type)
    report: Report = result.report
    assert report.small.params < report.dense.params and report.macs_kept == 1.0
    assert report.small.outside_macs < report.dense.outside_macs and report.ends is not None
    assert report.ends["harm"] > 0 and all(0 < error < 1 for error in report.ends["error"].values())
    result.save(tmp_path / "out", verify=model_type == "llama")  # a process of its own
    again = slimformer.load(tmp_path / "out")
    assert torch.equal(_logits(again), _logits(result.model))
    assert is_tied(again) == is_tied(_model(model_type)[0]) == report.ends["tied"]
    assert "Ends: embedding and head of rank 8 in place of" in (tmp_path / "out" / "README.md").read_text()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["slimformer"]["format"] == 9


OPENED_ALONE = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert "slimformer" not in sys.modules
torch.save(model(torch.tensor([[3, 40, 7, 250, 9, 12]])).logits.detach(), sys.argv[2])
"""


def test_it_opens_without_the_package_and_writes(tmp_path: Path) -> None:
    result = _shrunk(recipe=_recipe({"cut": {"macs": 0.6}}))
    result.save(tmp_path / "out", verify=False)
    (tmp_path / "alone.py").write_text(OPENED_ALONE)
    done = in_fresh_process([tmp_path / "alone.py", tmp_path / "out", tmp_path / "logits"], after="transformers")
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "logits"), _logits(result.model))
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generate(IDS, max_new_tokens=4, do_sample=False)
    whole = result.model.generate(IDS, max_new_tokens=4, do_sample=False, use_cache=False)
    assert torch.equal(written, whole) and written.shape == (1, 10)


@pytest.mark.parametrize("model_type", TYPES)
def test_with_all_columns_nothing_changes_and_biases_and_padding_stay(model_type: str) -> None:
    model, _ = _model(model_type)
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    with torch.no_grad():
        table.weight[5] = 0.0
    eye = torch.eye(table.weight.shape[1])
    whole = with_low_rank_ends(model, {"embedding": (table.weight, eye), "head": (head.weight, eye)})
    assert torch.equal(_logits(whole), _logits(model))
    assert (head.bias is None) or torch.equal(whole.get_output_embeddings().bias, head.bias)
    assert not whole.get_input_embeddings()(torch.tensor([5])).any()
    assert torch.equal(_logits(copy.deepcopy(whole)), _logits(model))


@pytest.mark.parametrize("end", ["embedding", "head"])
def test_one_end_alone_unties_what_was_tied(end: str, tmp_path: Path) -> None:
    result = _shrunk("gpt2", recipe=_recipe(end=end))
    assert result.report.ends["ends"] == [end] and not result.report.ends["tied"]
    other = "get_output_embeddings" if end == "embedding" else "get_input_embeddings"
    assert torch.equal(getattr(result.model, other)().weight, getattr(_model("gpt2")[0], other)().weight)
    result.save(tmp_path / "out", verify=False)
    assert torch.equal(_logits(slimformer.load(tmp_path / "out")), _logits(result.model))


def test_an_encoder_without_a_head_has_one_end() -> None:
    result = _shrunk("bert", "bare")
    assert result.report.ends["ends"] == ["embedding"] and result.report.ends["harm"] > 0


def test_budgets_over_everything_leave_to_the_blocks_what_the_ends_do_not_take() -> None:
    how: dict[str, Any] = {"recipe": "balanced", "refine": False}
    alone, both = (_shrunk(total_macs=0.7, settings=ranks, **how).report for ranks in ({}, {"ends.rank": 8}))
    assert both.small.outside_macs < alone.small.outside_macs and both.small.block_macs > alone.small.block_macs
    everything = [cost.block_macs + cost.outside_macs for cost in (both.small, both.dense)]
    assert everything[0] <= 0.7 * everything[1]
    room = int(0.75 * alone.dense.bytes)
    by_size = _shrunk(size=room, settings={"ends.rank": 8, "cut.fewer_tokens": False}, **how)
    assert by_size.report.small.bytes <= room and by_size.report.ends["rank"] == 8


def test_bits_and_fewer_tokens_go_with_it(tmp_path: Path) -> None:
    result = _shrunk(recipe=_recipe({"quantize": {"bits": 8, "group": 0, "tables": True}}), vocab=0.8)
    assert result.report.quantization["tables"] and result.report.vocabulary["keep"] < result.report.vocabulary["of"]
    result.save(tmp_path / "out", verify=False)
    again = slimformer.load(tmp_path / "out")
    torch.testing.assert_close(_logits(again), _logits(result.model), atol=1e-5, rtol=1e-5)


def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    shrunk = _shrunk()
    shrunk.save(tmp_path / "out", verify=False)

    def refused(error: type[SlimformerError], words: str, model: Any = None, **how: Any) -> None:
        opened, tokenizer = _model() if model is None else (model, fallback())
        with pytest.raises(error, match=words) as caught:
            slimformer.compress(opened, "nowhere.txt", **{"processor": tokenizer, "recipe": _recipe(), **how})
        assert "\n" not in str(caught.value)

    refused(BudgetOutOfReach, "the step ends needs a rank", recipe=_recipe(rank=None))
    refused(BudgetOutOfReach, r"ends.rank=32: .* smaller up to rank 29", recipe=_recipe(rank=32))
    refused(UnknownMethod, "no word for an embedding or a head of low rank", format="plain")
    refused(UnknownMethod, "has no head of words", tiny("bert", "bare"), recipe=_recipe(end="head"))
    refused(UnknownMethod, "have a rank already", shrunk.model)
    refused(UnknownMethod, "reads images", tiny("vit"), processor=tiny_image_processor())
    with pytest.raises(SlimformerError, match="both ends and depth"):
        _recipe({"depth": {}})
    with pytest.raises(CannotExport, match="the step ends"):
        slimformer.export(tmp_path / "out", to="gguf", out=tmp_path / "x.gguf")
    with pytest.raises(HeadDoesNotFit, match="heads of low rank"):
        slimformer.adapt(shrunk.model, TEXTS, processor=fallback())

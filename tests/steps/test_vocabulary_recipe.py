"""The step `vocabulary`: from texts to a checkpoint with fewer tokens, alone and before other steps."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedModel

import slimformer
from families import tiny, tiny_image_processor, tiny_tokenizer
from slimformer.errors import BudgetOutOfReach, DataUnreadable, ModelBroken, SlimformerError, UnknownMethod
from slimformer.models.pieces import pieces_of
from tokenizers_by_kind import KINDS, WORDS

TEXTS = [" ".join(WORDS.split()[i % 30 :][: 6 + i % 5]) + f" {i}" for i in range(240)]
MODELS = {"word_piece": "bert", "byte_level": "roberta", "fallback": "llama", "unigram": "bert", "end_of_word": "gpt2"}


def _model(kind: str, head: str | None = None, spare: int = 3) -> tuple[PreTrainedModel, Any]:
    """A model with a few more rows than its tokenizer has tokens, as many have."""
    tokenizer = KINDS[kind]()
    return tiny(MODELS[kind], head, vocab_size=len(tokenizer) + spare), tokenizer


def _shrunk(kind: str, head: str | None = None, spare: int = 3, **how: Any) -> Any:
    model, tokenizer = _model(kind, head, spare)
    how = {"recipe": "vocabulary", "vocab": 0.9, "timing": False, "tokens": 1000, "only_data": True, **how}
    return slimformer.compress(model, TEXTS, processor=tokenizer, **how)


@pytest.mark.parametrize("kind", MODELS)
def test_the_result_is_a_plain_checkpoint_with_its_own_tokenizer(kind: str, tmp_path: Path) -> None:
    result = _shrunk(kind)
    facts = result.report.vocabulary
    assert facts["keep"] < facts["of"] and facts["keep"] == result.model.config.vocab_size
    assert 0.9 <= facts["covered_there"] <= 1 and 0 < facts["covered"] <= 1
    assert facts["tokens_per_text"][1] >= facts["tokens_per_text"][0] > 0
    assert result.report.small.params < result.report.dense.params
    result.save(tmp_path / "out", verify=kind == "byte_level")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = type(result.model).from_pretrained(tmp_path / "out")
    assert len(tokenizer) == model.get_input_embeddings().num_embeddings == facts["keep"]
    text = json.loads((tmp_path / "out" / "report.json").read_text())["vocabulary"]
    assert text["keep"] == facts["keep"]
    assert "Vocabulary: " in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("head", ["bare", "masked", "classify", "answer"])
def test_models_that_read_other_tokens_are_compared_by_text(head: str) -> None:
    names = [metric["name"] for metric in _shrunk("word_piece", head).report.metrics]
    assert names == (["kl", "agreement"] if head == "classify" else ["cosine of pooled states"])


def test_language_models_are_compared_by_bits_per_byte() -> None:
    (metric,) = _shrunk("fallback").report.metrics
    assert metric["name"] == "bits per byte" and metric["dense"] > 0 and metric["low"] <= metric["high"]


@pytest.mark.parametrize("kind", ["word_piece", "fallback"])
def test_keeping_every_token_changes_nothing(kind: str) -> None:
    metric = _shrunk(kind, spare=0, vocab=len(KINDS[kind]())).report.metrics[0]
    assert metric["small"] == pytest.approx(metric["dense"], rel=1e-6)


@pytest.mark.parametrize(("kind", "more"), [("word_piece", {"bits": 8}), ("fallback", {"format": "plain"})])
def test_other_steps_follow_in_the_new_tokens(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    result = _shrunk(kind, recipe="balanced", macs=0.5, vocab=0.8, **more)
    assert result.report.macs_kept <= 0.5
    assert result.model.config.vocab_size == result.report.vocabulary["keep"] < result.report.vocabulary["of"]
    result.save(tmp_path / "out")


def test_a_size_counts_the_smaller_tables() -> None:
    model, tokenizer = _model("word_piece", "bare")
    room = 4 * sum(parameter.numel() for parameter in model.parameters()) - 4 * 32 * len(tokenizer) // 4
    result = _shrunk("word_piece", "bare", recipe="balanced", size=room, vocab=0.8)
    assert result.report.small.bytes <= room


def test_tokens_are_counted_on_other_text(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("\n\n".join(["quartz quartz wizards"] * 50))
    result = _shrunk("word_piece", vocab=0.99, vocab_data=str(tmp_path / "own.txt"))
    known = result.loaded.processor.get_vocab()
    assert {"quartz", "wizards"} <= known.keys() and result.report.vocabulary["on"] == "own.txt"
    assert result.report.vocabulary["counted"] == 150


def test_settings_and_flags_say_the_same() -> None:
    by_flag = _shrunk("word_piece", vocab=160)
    by_setting = _shrunk("word_piece", vocab=None, settings={"vocabulary.keep": 160, "vocabulary.cover": None})
    assert by_flag.report.vocabulary["keep"] == 160
    assert by_flag.loaded.processor.get_vocab() == by_setting.loaded.processor.get_vocab()


@pytest.mark.parametrize("kind", ["word_piece", "byte_level"])
def test_refitting_pieces_is_never_worse_where_it_is_chosen(kind: str) -> None:
    refit = _shrunk(kind, vocab=0.7).report.vocabulary["refit"]
    assert refit["words"] > 0 and len(refit["losses"]) == 4
    assert refit["losses"][refit["ridge"]] == min(refit["losses"].values())


def test_without_refitting_rows_stay_what_they_were() -> None:
    result = _shrunk("word_piece", settings={"vocabulary.refit": False})
    model, tokenizer = _model("word_piece")
    before, after = (each.get_input_embeddings().weight for each in (model, result.model))
    known = result.loaded.processor.get_vocab()
    rows = [tokenizer.get_vocab()[token] for token in sorted(known, key=lambda token: known[token])]
    assert torch.equal(after, before[rows]) and result.report.vocabulary["refit"] is None


def test_a_compressed_folder_is_compared_with_the_original(tmp_path: Path) -> None:
    from slimformer.calibrate.gather import Reading, gather
    from slimformer.evaluate.assessment import evaluate_pair
    from slimformer.models import describe
    from slimformer.models.load import load_model

    result = _shrunk("word_piece", "bare")
    model, tokenizer = _model("word_piece", "bare")
    model.save_pretrained(tmp_path / "dense")
    tokenizer.save_pretrained(tmp_path / "dense")
    result.save(tmp_path / "out", verify=False)
    dense, small = load_model(tmp_path / "dense"), load_model(tmp_path / "out")
    data = gather(TEXTS, dense.model, dense.processor, describe(dense.model), Reading(tokens=1000))
    report = evaluate_pair(dense, small, data)
    assert report.metrics == result.report.metrics
    other = tiny("bert", "bare", vocab_size=len(tiny_tokenizer()) - 4)
    other.save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    with pytest.raises(SlimformerError, match="differ in vocabulary"):
        evaluate_pair(dense, load_model(tmp_path / "other"), data)


def _refused(model: PreTrainedModel, tokenizer: Any, data: Any = TEXTS, **how: Any) -> str:
    with pytest.raises((BudgetOutOfReach, UnknownMethod, DataUnreadable, ModelBroken)) as error:
        slimformer.compress(model, data, processor=tokenizer, recipe="vocabulary", timing=False, **how)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    model, tokenizer = _model("word_piece")
    assert "tokens; give fewer" in _refused(model, tokenizer, vocab=10_000)
    least = len(pieces_of(tokenizer).always)
    assert f"give {least} or more" in _refused(model, tokenizer, vocab=least - 1)
    assert "tokenizer.json" in _refused(model, None, vocab=200)
    assert "(here: ByT5Tokenizer); convert it" in _refused(model, ByT5Tokenizer(), vocab=200)  # there is no fast one
    assert "WordLevel" in _refused(tiny("bert"), tiny_tokenizer(), vocab=20)
    assert "reads images" in _refused(tiny("vit"), tiny_image_processor(), vocab=20)
    assert "belongs to the model" in _refused(tiny("bert"), tokenizer, vocab=200)
    assert "other tokens" in _refused(model, tokenizer, torch.zeros(9, 8, dtype=torch.long).random_(5, 99), vocab=200)
    assert "one number" in _refused(model, tokenizer, settings={"vocabulary.keep": 100})

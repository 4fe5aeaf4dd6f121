"""compress() on models in memory: the same seed gives the same bits, and the model given is left as it was."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import slimformer
from dealing import dealt
from families import CLASSES, LENGTH, MODEL_TYPES, VOCABULARY, tiny, tiny_image_processor, tiny_tokenizer
from slimformer.calibrate.documents import Document
from slimformer.errors import (
    BudgetOutOfReach,
    DataNotFound,
    DataUnreadable,
    ModelBroken,
    OutputExists,
    RankTooHigh,
    SequenceTooLong,
    TooFewTokens,
    UnknownArchitecture,
    UnknownRecipe,
)
from slimformer.models import FAMILIES
from terminal import done, save_tiny, texts, write_images, write_table, write_texts

TEXT_TYPES = tuple(name for name in MODEL_TYPES if not FAMILIES[name].image)


def token_ids(rows=60, length=LENGTH, seed=0):
    return torch.randint(5, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def shrink(model, data=None, **options):
    return slimformer.compress(
        model, token_ids() if data is None else data, **{"macs": 0.6, "timing": False, **options}
    )


def same_bits(a: PreTrainedModel, b: PreTrainedModel) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("model_type", TEXT_TYPES)
def test_token_ids_are_enough(model_type):
    model = tiny(model_type)
    result = shrink(model)
    assert result.report.macs_kept == result.plan.macs <= 0.6
    assert result.model.num_parameters() < model.num_parameters()
    assert result.report.metrics
    assert result.report.samples is None  # no tokenizer, no text


def test_the_same_seed_gives_the_same_bits():
    runs = [shrink(tiny("llama"), seed=seed) for seed in (3, 3, 4)]
    assert same_bits(runs[0].model, runs[1].model)
    assert runs[0].plan == runs[1].plan
    assert runs[0].report.metrics == runs[1].report.metrics
    assert not same_bits(runs[0].model, runs[2].model)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "bert"])
def test_the_dense_model_is_left_as_it_was(model_type):
    model = tiny(model_type)
    before, config = copy.deepcopy(model), model.config.to_dict()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    result = shrink(model)
    assert same_bits(model, before)
    assert model.config.to_dict() == config
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    small = {parameter.data_ptr() for parameter in result.model.parameters()}
    assert not small & {parameter.data_ptr() for parameter in model.parameters()}


@pytest.mark.parametrize("model_type", TEXT_TYPES)
def test_keeping_everything_changes_nothing(model_type):
    model = tiny(model_type)
    result = shrink(model, macs=1.0)
    assert same_bits(result.model, model)
    assert result.report.macs_kept == 1.0
    assert result.report.metric("kl")["small"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("model_type", ["llama", "opt", "bert"])
def test_plain_sizes_are_the_same_in_every_block(model_type):
    result = shrink(tiny(model_type), format="plain", macs=0.8)
    kept = {(edit.site.split(".", 2)[2], edit.keep) for edit in result.plan.edits}
    assert len(kept) == 2
    assert getattr(result.model.config, "slimformer", None) is None
    again = type(result.model)(result.model.config)  # the stock class can say it
    assert [p.shape for p in again.parameters()] == [p.shape for p in result.model.parameters()]


def test_texts_and_a_tokenizer():
    result = shrink(tiny("llama"), texts(60), processor=tiny_tokenizer(), tokens=400)
    assert result.report.data["name"] == "list in memory"
    assert 0 < result.report.data["tokens"]["fit"] <= 600  # a third of it broad text
    assert set(result.report.samples) == {"dense", "small"}


def test_limits_hold_for_token_ids_too():
    tokens = shrink(tiny("llama"), token_ids(200), tokens=320).report.data["tokens"]
    assert tokens["fit"] == 320
    assert sum(shrink(tiny("llama"), token_ids(200), samples=40).report.data["tokens"].values()) == 40 * LENGTH


def test_a_classifier_with_labels(tmp_path):
    table = write_table(tmp_path / "table.tsv")
    result = shrink(tiny("bert", "classify"), table, processor=tiny_tokenizer(), columns=["sentence"], tokens=1500)
    accuracy = result.report.metric("accuracy")
    assert 0 <= accuracy["small"] <= 1
    assert accuracy["low"] <= accuracy["small"] - accuracy["dense"] <= accuracy["high"]


def test_an_encoder_without_a_head():
    result = shrink(tiny("bert", "bare"), texts(60), processor=tiny_tokenizer(), tokens=600)
    assert {metric["name"] for metric in result.report.metrics} >= {"cka", "cosine of pooled states"}


def test_a_vision_model_with_a_folder_of_images(tmp_path):
    images = write_images(tmp_path / "images")
    result = shrink(tiny("vit"), images, processor=tiny_image_processor())
    assert result.report.metric("accuracy") is not None
    assert result.report.data["unit"] == "images"
    assert sum(result.report.data["tokens"].values()) == 12 * CLASSES
    assert result.report.seq_len == 17


def test_a_short_window_leaves_no_room_for_a_sample():
    model = tiny("gpt2", n_positions=4)
    assert shrink(model, texts(60), processor=tiny_tokenizer(), tokens=400).report.samples is None


def test_saving_and_loading(tmp_path):
    """The one test here that reloads in a fresh process."""
    result = shrink(tiny("llama"), texts(60), processor=tiny_tokenizer(), tokens=400)
    result.save(tmp_path / "small")
    assert same_bits(slimformer.load(tmp_path / "small"), result.model)
    report = json.loads((tmp_path / "small" / "report.json").read_text())
    assert report == json.loads(json.dumps(result.report.to_dict()))
    assert slimformer.Plan.load(tmp_path / "small" / "plan.json") == result.plan
    assert (tmp_path / "small" / "tokenizer.json").is_file()


def test_saving_never_replaces_the_dense_model(tmp_path, trusting):
    save_tiny(tmp_path / "dense", "llama")
    write_texts(tmp_path / "text.txt")
    result = shrink(tmp_path / "dense", tmp_path / "text.txt", tokens=400)
    with pytest.raises(OutputExists, match="read to make the result"):
        result.save(tmp_path / "dense", force=True)
    assert slimformer.load(tmp_path / "dense").num_parameters() == result.report.dense.params
    result.save(tmp_path / "small")
    with pytest.raises(OutputExists, match="exists already"):
        result.save(tmp_path / "small")
    result.save(tmp_path / "small", force=True)


def test_a_folder_and_a_model_in_memory_give_the_same_bits(tmp_path):
    save_tiny(tmp_path / "dense", "llama")
    write_texts(tmp_path / "text.txt")
    one = shrink(tmp_path / "dense", tmp_path / "text.txt", tokens=400)
    other = shrink(tiny("llama"), tmp_path / "text.txt", processor=tiny_tokenizer(), tokens=400)
    assert same_bits(one.model, other.model)


def test_half_precision_is_stored_as_it_was(tmp_path, trusting):
    model = tiny("llama").to(torch.float16)
    model.save_pretrained(tmp_path / "dense")
    result = slimformer.compress(tmp_path / "dense", token_ids(), macs=0.6, timing=False)
    assert result.model.dtype == torch.float32  # computed in
    result.save(tmp_path / "small")
    stored = slimformer.load(tmp_path / "small")
    assert stored.dtype == torch.float16
    assert same_bits(stored.float(), result.model)  # what was measured is what is stored
    assert result.report.dense.bytes == 2 * result.report.dense.params


@pytest.mark.parametrize(
    ("model_type", "side"), dealt([t for t in TEXT_TYPES if FAMILIES[t].causal], ["left", "right"])
)
def test_decoders_that_classify_read_documents_and_not_windows(model_type, side):
    documents = [Document(text, label=i % CLASSES) for i, text in enumerate(texts(80))]
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    result = shrink(tiny(model_type, "classify"), documents, processor=tokenizer, tokens=600)
    assert result.report.metric("accuracy")


def test_a_decoder_without_padding_token_classifies_one_row_at_a_time():
    documents = [Document(text, label=i % CLASSES) for i, text in enumerate(texts(40))]
    for data in (documents, token_ids(40)):
        model = tiny("gpt2", "classify", pad_token_id=None)
        assert shrink(model, data, processor=tiny_tokenizer(), tokens=600).report.metric("kl")


def poisoned():
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = torch.nan
    return model


@pytest.mark.parametrize(
    ("model_type", "data", "options", "error", "message"),
    [
        ("llama", token_ids(3), {}, TooFewTokens, "at least 4 × 2"),
        ("llama", token_ids(4), {"format": "plain", "macs": 0.95}, RankTooHigh, "too few to fit .* with tokens=…"),
        ("llama", token_ids(60, 1), {}, TooFewTokens, "at least 4 × 2"),
        ("llama", token_ids()[0], {}, TooFewTokens, "sequences × length"),
        ("llama", token_ids(), {"samples": 3}, TooFewTokens, "leave nothing for certify"),
        ("llama", token_ids().float(), {}, DataUnreadable, "token ids must be integers"),
        ("llama", token_ids() + VOCABULARY, {}, DataUnreadable, "the model knows 0 to 63"),
        ("llama", token_ids() - 10, {}, DataUnreadable, "the model knows 0 to 63"),
        ("llama", texts(60), {}, DataUnreadable, "give a tokenizer as `processor`"),
        ("llama", token_ids(), {"seq_len": 65}, SequenceTooLong, "has 64 positions"),
        ("roberta", token_ids(), {"seq_len": 63}, SequenceTooLong, "has 62 positions"),
        ("vit", token_ids(), {}, DataUnreadable, "calibrated on images"),
        ("vit", "images", {"seq_len": 16}, SequenceTooLong, "an image is always 17 positions to this model"),
        ("vit", ["a", "b"], {}, DataNotFound, "calibrated on images"),
        ("llama", token_ids(), {"macs": 0}, BudgetOutOfReach, "not a fraction"),
        ("llama", token_ids(), {"macs": float("nan")}, BudgetOutOfReach, "not a fraction"),
        ("llama", token_ids(), {"recipe": "nope"}, UnknownRecipe, "choose from balanced"),
        ("llama", token_ids(), {"format": "nope"}, BudgetOutOfReach, "choose from ragged, plain"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(model_type, data, options, error, message):
    with pytest.raises(error, match=message):
        shrink(tiny(model_type), data, **options)


def test_weights_that_are_not_finite_are_refused():
    with pytest.raises(ModelBroken, match="hold NaN or infinite values"):
        shrink(poisoned())


@pytest.mark.parametrize("head", [transformers.BertForPreTraining, transformers.BertForMultipleChoice])
def test_a_head_whose_outputs_cannot_be_compared_is_refused(head):
    with pytest.raises(UnknownArchitecture, match=f"{head.__name__} has a head that is not supported; open it as"):
        shrink(head(tiny("bert").config))


@pytest.mark.parametrize("model_type", ["roberta", "opt", "gpt2"])
def test_the_longest_sequence_a_model_reads_can_be_used(model_type):
    length = 62 if model_type == "roberta" else 64
    assert shrink(tiny(model_type), token_ids(20, length), seq_len=length).report.seq_len == length


def test_a_smaller_model_can_be_made_smaller_still():
    once = shrink(tiny("llama"), macs=0.8)
    twice = shrink(once.model, macs=0.7)
    assert twice.model.num_parameters() < once.model.num_parameters()


def test_no_scratch_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shrink(tiny("llama"))
    with pytest.raises(TooFewTokens):
        shrink(tiny("llama"), token_ids(3))
    assert not list(tmp_path.iterdir())


def test_budgets_nobody_asked_for_need_not_be_within_reach_of_the_tokens(tmp_path):
    """Few tokens fit the budget that was asked for, and not all of those that the page shows beside it."""
    save_tiny(tmp_path / "qwen3", "qwen3")
    data, few = write_texts(tmp_path / "text.txt"), ("--only-data", "--tokens", 40)
    done("compress", tmp_path / "qwen3", "--macs", 0.5, "--recipe", "linear-mlp", "--data", data, *few, "--no-timing",
         "--out", tmp_path / "small", "-q")  # fmt: skip
    points = json.loads((tmp_path / "small" / "report.json").read_text())["front"]["points"]
    assert 0.5 in [point["budget"] for point in points] and 0.7 not in [point["budget"] for point in points]
    done("calibrate", tmp_path / "qwen3", "--data", data, *few, "--out", tmp_path / "stats", "-q")
    done("frontier", tmp_path / "stats", "--recipe", "linear-mlp")

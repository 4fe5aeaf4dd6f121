"""Linformers as Hugging Face models: pads on any side, no future, parameters as said, opened by Auto classes."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

import slimformer  # noqa: F401  (teaches the Auto classes)
from dealing import dealt
from slimformer.errors import ProjectionDoesNotFit, SequenceTooLong
from slimformer.lab.architectures.linformer_models import (
    LinformerForCausalLM,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)
from slimformer.lab.architectures.linformer_projections import KINDS, SHARING

LAYERS, HEADS, LENGTH, VOCABULARY = 2, 4, 32, 40
CAUSAL = [kind for kind in KINDS if kind != "svd"]


def config_of(**fields):
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "max_position_embeddings": LENGTH, "k": 8, "mlp_ratio": 2, "initializer_range": 0.3,
    }  # fmt: skip
    return AutoConfig.for_model("linformer", **(sizes | fields))


def tokens(*shape):
    return torch.randint(1, VOCABULARY, shape)


def padded(ids, pads, side):
    """The same sequence with tokens of no meaning before or after it."""
    junk, mask = tokens(len(ids), pads), torch.ones_like(ids)
    none = torch.zeros_like(junk)
    if side == "right":
        return torch.cat([ids, junk], 1), torch.cat([mask, none], 1)
    return torch.cat([junk, ids], 1), torch.cat([none, mask], 1)


@pytest.mark.parametrize(
    ("auto", "kind"),
    [*product([AutoModelForMaskedLM], KINDS), *product([AutoModelForCausalLM], CAUSAL)],
)
def test_pads_change_nothing_on_either_side(auto, kind):
    model = auto.from_config(config_of(projection=kind)).eval()
    ids = tokens(2, 21)
    for side in ("left", "right"):
        longer, mask = padded(ids, 7, side)
        found = model(longer, attention_mask=mask).logits
        found = found[:, :21] if side == "right" else found[:, 7:]
        torch.testing.assert_close(found, model(ids).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_pads_change_no_class(pooling):
    model = AutoModelForSequenceClassification.from_config(config_of(num_labels=3, pooling=pooling)).eval()
    ids = tokens(2, 21)
    for side in ("left", "right"):
        longer, mask = padded(ids, 7, side)
        found = model(longer, attention_mask=mask).logits
        torch.testing.assert_close(found, model(ids).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "sharing"), dealt(CAUSAL, SHARING))
def test_the_next_token_knows_nothing_of_the_future(kind, sharing):
    norm = "post" if sharing == "none" else "pre"
    config = config_of(projection=kind, sharing=sharing, norm=norm, block_size=8)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = tokens(1, 30)
    whole = model(ids).logits
    for now in (6, 16, 25):
        other = torch.cat([ids[:, : now + 1], tokens(1, 29 - now)], 1)
        torch.testing.assert_close(model(other).logits[:, : now + 1], whole[:, : now + 1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("row_stochastic", [False, True])
@pytest.mark.parametrize("sharing", SHARING)
def test_parameters_are_those_of_the_standard_model_and_the_stated_matrices(sharing, row_stochastic):
    matrices = {"none": 2 * LAYERS * HEADS, "headwise": 2 * LAYERS, "key-value": LAYERS, "layerwise": 1}[sharing]
    standard = LinformerModel(config_of(projection="exact")).num_parameters()
    model = LinformerModel(config_of(sharing=sharing, row_stochastic=row_stochastic))
    assert model.num_parameters() - standard == matrices * LENGTH * 8


def test_every_layer_and_head_may_have_its_own_k():
    standard = LinformerModel(config_of(projection="exact")).num_parameters()
    by_layer = LinformerModel(config_of(k=[8, 4]))
    assert by_layer.num_parameters() - standard == 2 * LENGTH * (8 + 4)
    by_head = LinformerModel(config_of(k=[[8, 4, 4, 2], [2, 2, 2, 1]], sharing="none")).eval()
    assert by_head.num_parameters() - standard == 2 * LENGTH * (18 + 7)
    assert by_head(tokens(2, 20)).last_hidden_state.isfinite().all()


def test_a_config_that_cannot_be_is_refused_in_words():
    for fields, said in (
        ({"projection": "nystrom"}, "no projection 'nystrom'"),
        ({"sharing": "some"}, "no sharing 'some'"),
        ({"k": [8, 4], "sharing": "layerwise"}, "which has one k"),
        ({"k": [8, 4, 4]}, "3 values of k for 2 layers"),
        ({"use_cache": True}, "use_cache"),
    ):
        with pytest.raises(ProjectionDoesNotFit, match=said):
            config_of(**fields)
    with pytest.raises(ProjectionDoesNotFit, match="reads both sides"):
        AutoModelForMaskedLM.from_config(config_of(is_causal=True))
    with pytest.raises(SequenceTooLong, match="33 tokens"):
        LinformerModel(config_of())(tokens(1, 33))


def test_losses_ignore_what_is_not_asked_for():
    ids, nothing = tokens(2, 16), torch.full((2, 16), -100)
    for auto, shift in ((AutoModelForMaskedLM, 0), (AutoModelForCausalLM, 1)):
        model = auto.from_config(config_of()).eval()
        labels = nothing.clone()
        labels[0, 5], labels[1, 9] = 3, 4
        out = model(ids, labels=labels)
        chosen = torch.stack([out.logits[0, 5 - shift], out.logits[1, 9 - shift]])
        torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(chosen, torch.tensor([3, 4])))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_every_parameter(checkpointing):
    for sharing in ("none", "layerwise"):
        model = LinformerForMaskedLM(config_of(sharing=sharing, row_stochastic=True)).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        ids, mask = tokens(3, 20), torch.rand(3, 20) > 0.3
        model(ids, attention_mask=mask, labels=ids).loss.backward()
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_without_feed_forward_there_is_none():
    model = LinformerForSequenceClassification(config_of(mlp_ratio=0))
    assert not any("mlp" in name for name, _ in model.named_parameters())
    assert model(tokens(2, 9), labels=torch.tensor([0, 1])).loss.isfinite()


@pytest.mark.parametrize("kind", ["linear", "mean", "cluster", "exact"])
def test_generation_is_what_the_whole_text_says(kind):
    """Greedy tokens are the argmax of the model on all that came before; with pads on the left too."""
    model = LinformerForCausalLM(config_of(projection=kind, eos_token_id=None)).eval()
    ids = tokens(2, 5)
    given, mask = padded(ids, 3, "left")
    short = model.generate(ids, max_new_tokens=12, do_sample=False)
    assert short.shape == (2, 17)
    for n in range(5, 17):
        assert torch.equal(model(short[:, :n]).logits[:, -1].argmax(-1), short[:, n])
    longer = model.generate(given, attention_mask=mask, max_new_tokens=12, do_sample=False, use_cache=True)
    assert torch.equal(longer[:, 8:], short[:, 5:])


def test_a_cache_is_refused():
    with pytest.raises(ProjectionDoesNotFit, match="no cache"):
        LinformerForCausalLM(config_of())(tokens(1, 4), past_key_values=object())


FRESH = """
import sys, json, torch, transformers
from safetensors.torch import load_file, save_file
import slimformer
for name, folder in json.loads(sys.argv[1]).items():
    model = getattr(transformers, name).from_pretrained(folder).eval()
    given = load_file(f"{folder}/sample.st")
    with torch.no_grad():
        out = model(given["input_ids"])[0]
    save_file({"out": out.contiguous()}, f"{folder}/out.st")
"""


CASES = {
    "AutoModel": (AutoModel, {"sharing": "none", "k": [[8, 4, 4, 2], [2, 2, 2, 1]]}),
    "AutoModelForMaskedLM": (AutoModelForMaskedLM, {"sharing": "layerwise", "row_stochastic": True}),
    "AutoModelForSequenceClassification": (AutoModelForSequenceClassification, {"projection": "conv"}),
    "AutoModelForCausalLM": (AutoModelForCausalLM, {"projection": "cluster", "second_order": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_saved_models_are_opened_by_auto_classes(name, tmp_path):
    auto, fields = CASES[name]
    model, ids = auto.from_config(config_of(**fields)).eval(), tokens(2, 25)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "linformer"
    again = auto.from_pretrained(tmp_path).eval()
    assert again.config.to_dict()["k"] == model.config.to_dict()["k"]
    torch.testing.assert_close(again(ids)[0], model(ids)[0], atol=0, rtol=0)


@pytest.mark.slow
def test_saved_models_are_opened_in_a_fresh_process(tmp_path):
    ids, wanted = tokens(2, 25), {}
    for name, (auto, fields) in CASES.items():
        model, folder = auto.from_config(config_of(**fields)).eval(), tmp_path / name
        model.save_pretrained(folder)
        save_file({"input_ids": ids}, folder / "sample.st")
        wanted[name] = model(ids)[0]
    folders = json.dumps({name: str(tmp_path / name) for name in CASES})
    subprocess.run([sys.executable, "-c", FRESH, folders], check=True, capture_output=True)
    for name in CASES:
        torch.testing.assert_close(load_file(tmp_path / name / "out.st")["out"], wanted[name])


def test_an_encoder_of_a_causal_model_stays_causal(tmp_path):
    config = config_of(projection="mean")
    model = LinformerForCausalLM(config).eval()
    assert not config.is_causal and model.config.is_causal
    model.save_pretrained(tmp_path)
    encoder = LinformerModel.from_pretrained(tmp_path).eval()
    ids = tokens(1, 20)
    torch.testing.assert_close(encoder(ids)[0], model.encoder(ids)[0])


def test_what_is_not_in_a_checkpoint_is_drawn_as_in_a_new_model(tmp_path):
    """A classifier from an encoder: projections are those saved, and a new projection is no garbage."""
    LinformerModel(config_of(projection="exact")).save_pretrained(tmp_path)
    model = LinformerForMaskedLM.from_pretrained(tmp_path, config=config_of())
    for weight in model.encoder.blocks[0].attention.projections.parameters():
        assert weight.abs().max() <= (3 / (8 + LENGTH)) ** 0.5 and weight.std() > 0


def test_the_head_is_the_embedding():
    model = LinformerForMaskedLM(config_of())
    assert model.lm_head.weight is model.encoder.tokens.weight
    model.resize_token_embeddings(50)
    assert model(tokens(1, 5)).logits.shape[-1] == 50


@pytest.mark.parametrize("auto", [AutoModelForMaskedLM, AutoModelForCausalLM, AutoModelForSequenceClassification])
def test_outputs_follow_the_config(auto):
    config = config_of(num_labels=3)
    config.return_dict, config.output_hidden_states = False, True
    model = auto.from_config(config).eval()
    logits, states = model(tokens(2, 9))
    assert logits.shape[0] == 2 and len(states) == LAYERS + 1


def test_logits_of_chosen_places():
    model = AutoModelForCausalLM.from_config(config_of()).eval()
    ids = tokens(2, 9)
    all_of_them = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, all_of_them[:, -2:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([1, 4])).logits, all_of_them[:, [1, 4]])


@pytest.mark.parametrize("fields", [{"k": 12.5}, {"k": True}, {"block_size": -4}])
def test_numbers_that_are_none_are_refused(fields):
    with pytest.raises(ProjectionDoesNotFit):
        config_of(**fields)


def test_what_there_is_not_is_refused():
    model = AutoModelForCausalLM.from_config(config_of())
    with pytest.raises(ProjectionDoesNotFit, match="output_attentions"):
        model(tokens(1, 5), output_attentions=True)
    with pytest.raises(ProjectionDoesNotFit, match="3 axes"):
        model(tokens(1, 5), attention_mask=torch.ones(1, 5, 5))

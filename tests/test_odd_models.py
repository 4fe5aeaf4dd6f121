"""Models and data at the edge of what there is: one layer, one head, one neuron, one token, NaN, half precision."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from families import VOCABULARY, tiny_tokenizer
from slimformer.models.load import load_model
from terminal import compress, done, refused, save_tiny, write_texts

SMALLEST = {
    "one layer": {"num_hidden_layers": 1},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32},
    "one layer with one head": {
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32,
    },
    "one neuron": {"intermediate_size": 1},
}  # fmt: skip


def llama(folder, **fields):
    torch.manual_seed(0)
    usual = {
        "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**(usual | fields)))
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_models_go_through(name, tmp_path, trusting):
    llama(tmp_path / "model", **SMALLEST[name])
    write_texts(tmp_path / "text.txt")
    done(*compress(tmp_path / "model", tmp_path, tmp_path / "small", "--macs", 0.8))
    small = load_model(tmp_path / "small").model
    assert torch.isfinite(small(torch.arange(8)[None]).logits).all()


def test_units_that_never_vary_cost_nothing_to_lose(tmp_path, trusting):
    model = llama(tmp_path / "model")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight[10:] = 0  # silu(0) · x = 0, whatever the input
    model.save_pretrained(tmp_path / "model")
    write_texts(tmp_path / "text.txt")
    said = done(*compress(tmp_path / "model", tmp_path, tmp_path / "small", "--json"))
    kept = [site["keep"] for site in json.loads(said.out)["sites"] if site["site"].endswith("hidden")]
    assert max(kept) <= 16  # ten that matter, in eights
    dense, small = (load_model(tmp_path / name).model for name in ("model", "small"))
    ids = torch.arange(12)[None]
    assert torch.isfinite(small(ids).logits).all() and dense(ids).logits.shape == small(ids).logits.shape


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value, tmp_path):
    model = llama(tmp_path / "model")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] = value
    model.save_pretrained(tmp_path / "model")
    write_texts(tmp_path / "text.txt")
    assert "NaN or infinite values" in refused(*compress(tmp_path / "model", tmp_path, tmp_path / "small"))


@pytest.mark.parametrize("text", ["w7", "w7 w8", ""])
def test_next_to_no_text_is_refused(text, tmp_path):
    model = save_tiny(tmp_path / "model", "llama")
    (tmp_path / "text.txt").write_text(text)
    refused(*compress(model, tmp_path, tmp_path / "small"))
    assert not (tmp_path / "small").exists()


def test_text_that_is_no_utf8_is_refused(tmp_path):
    model = save_tiny(tmp_path / "model", "llama")
    (tmp_path / "text.txt").write_bytes("w7 w8 café ".encode("latin-1") * 500)
    said = refused(*compress(model, tmp_path, tmp_path / "small"))
    assert "UTF-8" in said or "text" in said


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_checkpoints_of_half_precision_stay_what_they_are(dtype, tmp_path, trusting):
    llama(tmp_path / "dense").to(dtype).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    write_texts(tmp_path / "text.txt")
    done(*compress(tmp_path / "model", tmp_path, tmp_path / "small"))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "small").dtype == dtype

"""Models over groups of keys: exact where nothing is grouped, causal, the same with a cache and after a reload."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

import slimformer  # noqa: F401
from families import VOCABULARY, tiny
from slimformer.nn.grouped_cache import GroupedLayer, cache_bytes
from slimformer.nn.long_context import FIELD, install, remove

DECODERS = ("llama", "gpt2", "opt", "qwen3")
K, WINDOW, LONG = 8, 8, 60


def table(layers=(0, 2), **others: Any) -> dict[str, Any]:
    said = {str(i): {"second_order": i == 0} for i in layers}
    return {"format": 1, "kind": "cluster", "k": K, "window": WINDOW, "sinks": 1, "layers": said, **others}


def grouped(model_type: str, head: str | None = None, **others: Any) -> PreTrainedModel:
    model = tiny(model_type, head, max_position_embeddings=80) if model_type != "gpt2" else tiny("gpt2", n_positions=80)
    setattr(model.config, FIELD, table(**others))
    install(model)
    return model.double()


def ids(n: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, n), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: PreTrainedModel, tokens: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return model(input_ids=tokens, **kwargs).logits


@pytest.mark.parametrize("model_type", DECODERS)
def test_short_texts_are_exact_and_long_ones_are_not(model_type):
    model = grouped(model_type)
    short, long = logits(model, ids(K + WINDOW)), logits(model, ids(LONG))
    remove(model)
    torch.testing.assert_close(short, logits(model, ids(K + WINDOW)))
    assert not torch.allclose(long, logits(model, ids(LONG)), atol=1e-3)


@pytest.mark.parametrize("model_type", DECODERS)
@pytest.mark.parametrize("use_cache", [True, False])
def test_the_future_changes_nothing(model_type, use_cache):
    model = grouped(model_type)
    one, other = ids(LONG), torch.cat([ids(LONG)[:, :41], ids(LONG, seed=1)[:, 41:]], 1)
    a, b = (logits(model, tokens, use_cache=use_cache) for tokens in (one, other))
    torch.testing.assert_close(a[:, :41], b[:, :41], rtol=0, atol=1e-12)
    assert not torch.allclose(a[:, 41:], b[:, 41:])


@pytest.mark.parametrize("model_type", DECODERS)
def test_generation_continues_what_a_whole_pass_says_and_its_cache_stops_growing(model_type):
    model = grouped(model_type, layers=(0, 1, 2))
    done = model.generate(ids(33), max_new_tokens=20, do_sample=False, return_dict_in_generate=True, output_logits=True,
                          eos_token_id=None)  # fmt: skip
    whole = logits(model, done.sequences)
    torch.testing.assert_close(torch.stack(done.logits, 1), whole[:, 32:-1].to(done.logits[0].dtype))
    cache = done.past_key_values
    assert all(isinstance(layer, GroupedLayer) for layer in cache.layers)
    assert all(layer.memory.slots <= K + WINDOW for layer in cache.layers)
    assert cache.get_seq_length() == 52


def test_a_cache_handed_in_pieces_holds_less_than_the_dense_one():
    model, cache = grouped("llama"), DynamicCache()
    parts = [logits(model, part, past_key_values=cache) for part in ids(LONG).split([7, 30, 1, 22], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), logits(model, ids(LONG)))
    remove(model)
    dense = DynamicCache()
    logits(model, ids(LONG), past_key_values=dense)
    assert cache_bytes(cache) < cache_bytes(dense)


def test_beams_follow_their_memory():
    model = grouped("llama").double()
    how = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False, "eos_token_id": None}
    with_cache, without = (model.generate(ids(33), use_cache=use, **how) for use in (True, False))
    assert with_cache.shape == (1, 39) and torch.equal(with_cache, without)


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_half_precision_runs_over_groups(model_type):
    model = grouped(model_type)
    whole = model(ids(LONG), use_cache=False) if model_type == "llama" else model(ids(LONG))
    half = model.half()(ids(LONG))
    a, b = (out.logits if "logits" in out else out.last_hidden_state for out in (whole, half))
    assert b.dtype == torch.float16 and torch.isfinite(b).all()
    torch.testing.assert_close(a.float(), b.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("model_type", ["llama", "opt"])
def test_left_pads_change_nothing_in_short_texts_and_their_content_nothing_in_long_ones(model_type):
    model = grouped(model_type)
    mask = torch.ones(2, LONG, dtype=torch.long)
    mask[0, :20] = 0
    one = ids(LONG, 2)
    other = torch.where(mask == 1, one, 1)
    a, b = (logits(model, tokens, attention_mask=mask) for tokens in (one, other))
    torch.testing.assert_close(a[0, 20:], b[0, 20:])
    torch.testing.assert_close(a[1], logits(model, one[1:])[0])
    short, seen = torch.cat([torch.ones(1, 4).long(), ids(10)], 1), torch.tensor([[0] * 4 + [1] * 10])
    torch.testing.assert_close(
        logits(model, short, attention_mask=seen)[:, 4:], logits(model, ids(10)), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("kind", ["cluster", "mean", "learned", "least-squares"])
def test_encoders_ignore_pads(model_type, kind):
    model = grouped(model_type, kind=kind, length=48, layers=(1,)) if kind in ("learned", "least-squares") else grouped(
        model_type, kind=kind, layers=(1,)
    )  # fmt: skip
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[0, 25:] = 0
    tokens = torch.where(mask == 1, ids(40, 2), 1)
    padded = logits(model, tokens, attention_mask=mask)
    torch.testing.assert_close(padded[1], logits(model, tokens[1:])[0])
    if kind != "mean":  # of the fixed ones a token's group hangs on its place alone
        torch.testing.assert_close(padded[0, :25], logits(model, tokens[:1, :25])[0])


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_encoders_are_exact_up_to_k(model_type):
    model = grouped(model_type)
    grouped_logits = logits(model, ids(K))
    remove(model)
    torch.testing.assert_close(grouped_logits, logits(model, ids(K)))


def test_other_masks_get_exact_attention():
    model = grouped("llama")
    mask = torch.ones(1, 1, LONG, LONG, dtype=torch.bool).tril()
    found = logits(model, ids(LONG), attention_mask=mask, use_cache=False)
    with pytest.raises(ValueError, match="padding only"):
        logits(model, ids(LONG), attention_mask=mask)
    remove(model)
    torch.testing.assert_close(found, logits(model, ids(LONG)))


def test_a_cache_of_groups_refuses_another_attention():
    model, cache = grouped("llama"), DynamicCache()
    logits(model, ids(20), past_key_values=cache)
    model.set_attn_implementation("sdpa")
    logits(model, ids(1), past_key_values=cache)
    with pytest.raises(RuntimeError, match="another attention"):
        logits(model, ids(1), past_key_values=cache)


def test_a_folder_remembers_its_groups(tmp_path):
    model = grouped("llama").float()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(again, ids(LONG)), logits(model, ids(LONG)))
    again.set_attn_implementation("sdpa")
    assert not torch.allclose(logits(again, ids(LONG)), logits(model, ids(LONG)))


def test_gradients_flow_through_groups():
    model = grouped("llama").train()
    model(input_ids=ids(LONG), labels=ids(LONG)).loss.backward()
    grad = model.base_model.layers[0].self_attn.k_proj.weight.grad
    assert bool(grad.isfinite().all()) and float(grad.abs().sum()) > 0

"""Rewrites that change no output, on every family: exact, and something is really gone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from families import MODEL_TYPES, attention_part, tiny, tiny_batches
from planted import PLANTS, paddings, planted, rows_of
from ranked import furthest, logits
from slimformer.checkpoint.load import load
from slimformer.decompose.gauges import collapsed
from slimformer.models import describe
from slimformer.models.ranks import heads_of
from slimformer.rewrite.exact import Scope
from slimformer.rewrite.exact_attention import mapped_part
from slimformer.rewrite.lossless import REWRITES, offers, rewritten

DOUBLE, SINGLE = Scope(dtype=torch.float64), Scope(dtype=torch.float32)
ROTARY = [name for name in MODEL_TYPES if attention_part(name).rotary]
PLAIN = [name for name in MODEL_TYPES if name not in ROTARY]
TOGETHER = ("silent heads", "low value rank", "low score rank", "duplicates", "dead")
IN_RECIPE = tuple(name for name, rewrite in REWRITES.items() if not rewrite.note)
NOT_OFFERED = {  # plant → families for which its rewrite is not to be had, and a word of the reason
    "value biases": {"gpt2": "share one bias", "mistral": "no bias", "qwen2": "no bias to take", "qwen3": "no bias"},
    "key biases": {
        "gpt2": "share one bias", "llama": "rotary", "mistral": "no bias", "qwen2": "rotary", "qwen3": "no bias",
    },
    "low score rank": {"qwen3": "normed"},
    "uniform attention": {"qwen3": "normed"},
    "scales": dict.fromkeys(("bert", "roberta", "distilbert", "gpt2", "vit", "minimal"), "not homogeneous"),
}  # fmt: skip
SAVES_NOTHING = {"scales", "interpolation"}

families = pytest.mark.parametrize("model_type", MODEL_TYPES)


def same(model: Any, other: Any, atol: float) -> None:
    """The same outputs at all real positions, whatever the padding."""
    for padding, inputs in paddings(model).items():
        assert furthest(logits(model, inputs), logits(other, inputs)) < atol, padding


@families
@pytest.mark.parametrize("plant", PLANTS)
def test_every_rewrite_is_exact_and_removes_what_was_planted(plant, model_type):
    model = planted(model_type, plant)
    name = PLANTS[plant][2]
    (promised,) = offers(model, describe(model), DOUBLE, seq_len=16, names=[name])
    small, (saving,) = rewritten(model, [name], DOUBLE, seq_len=16)
    assert saving == promised
    assert saving.params == model.num_parameters() - small.num_parameters()
    if reason := NOT_OFFERED.get(plant, {}).get(model_type):
        assert not saving.possible
        assert reason in saving.why
        assert saving.sites == saving.params == 0
        return
    same(model, small, 1e-10)
    assert saving.sites >= 2
    assert (saving.params > 0) == (plant not in SAVES_NOTHING)
    assert not _equal(model, small)


def _equal(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@families
def test_all_of_them_together_are_exact_in_single_precision(model_type):
    model = planted(model_type, *TOGETHER, dtype=torch.float32)
    small, savings = rewritten(model, list(REWRITES), SINGLE, seq_len=16)
    same(model, small, 1e-5)
    gone = {saving.rewrite for saving in savings if saving.params}
    forbidden = {PLANTS[plant][2] for plant, families in NOT_OFFERED.items() if model_type in families}
    assert gone >= {PLANTS[plant][2] for plant in TOGETHER} - forbidden
    assert sum(saving.params for saving in savings) == model.num_parameters() - small.num_parameters()
    model.set_attn_implementation("eager")
    small.set_attn_implementation("eager")
    inputs = paddings(model).get("right") or paddings(model)["image"]
    assert furthest(logits(model, inputs), logits(small, inputs)) < 1e-5


@families
def test_a_second_time_there_is_nothing_left_to_do(model_type):
    once, _ = rewritten(planted(model_type, *TOGETHER), IN_RECIPE, DOUBLE, seq_len=16)
    twice, savings = rewritten(once, IN_RECIPE, DOUBLE, seq_len=16)
    assert all(saving.sites == 0 for saving in savings)
    assert _equal(once, twice)


@families
def test_a_saved_one_reloads_to_the_same_outputs(model_type, tmp_path):
    model = planted(model_type, *TOGETHER, dtype=torch.float32)
    small, _ = rewritten(model, IN_RECIPE, SINGLE, seq_len=16)
    small.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert _equal(again, small)
    same(small, again, 1e-7)
    same(model, again, 1e-5)


@families
def test_a_model_in_which_nothing_is_superfluous_stays_plain_but_for_its_biases(model_type):
    model = planted(model_type)
    small, savings = rewritten(model, IN_RECIPE, DOUBLE, seq_len=16)
    assert {s.rewrite for s in savings if s.sites} <= {"value-bias", "key-bias"}
    ragged = hasattr(small.config, "slimformer")
    assert ragged == any(saving.params for saving in savings)
    assert ragged or _equal(model, small)


@pytest.mark.parametrize("model_type", ["opt", "llama", "bert"])
def test_plain_results_have_the_same_number_of_neurons_everywhere(model_type, tmp_path):
    model = planted(model_type, "dead", "low value rank", blocks=(0, 1, 2))
    rows_of(model.get_submodule(describe(model)["blocks.1.ffn.hidden"].reader))[:, 20:30] = 0  # more than elsewhere
    small, savings = rewritten(model, IN_RECIPE, Scope("plain", torch.float64), seq_len=16)
    gone = {saving.rewrite for saving in savings if saving.params}
    assert "dead-neurons" in gone
    assert gone <= {"dead-neurons", "duplicate-neurons"}  # rows of zeros are copies of each other, too
    assert {saving.rewrite for saving in savings if "format='ragged'" in saving.why} >= {"silent-heads", "value-ranks"}
    assert getattr(small.config, "slimformer", None) is None
    assert len({site.units for site in describe(small) if site.kind == "ffn.hidden"}) == 1
    same(model, small, 1e-10)
    small.save_pretrained(tmp_path)
    same(small, load(tmp_path), 1e-10)


def test_neurons_are_kept_in_multiples():
    model = planted("opt", "dead", "duplicates")
    small, _ = rewritten(model, IN_RECIPE, Scope(dtype=torch.float64, multiple_of=32), seq_len=16)
    assert [site.units for site in describe(small) if site.kind == "ffn.hidden"] == [32, 48, 32]
    same(model, small, 1e-10)


@pytest.mark.parametrize("model_type", ["opt", "llama"])
def test_nothing_is_added_up_in_half_precision(model_type):
    """What is only taken away is exact in any precision; sums would be rounded, so they are not made."""
    model = planted(model_type, *TOGETHER, dtype=torch.bfloat16)
    small, savings = rewritten(model, list(REWRITES), Scope(dtype=torch.bfloat16), seq_len=16)
    refused = {saving.rewrite for saving in savings if "bfloat16" in saving.why}
    assert refused >= {"value-bias", "value-ranks", "duplicate-neurons", "interpolation"} - (
        set() if model_type == "opt" else {"value-bias"}
    )
    assert {"dead-neurons", "silent-heads"} <= {saving.rewrite for saving in savings if saving.params}
    left = {parameter.shape: parameter for parameter in small.parameters()}
    assert left
    same(model.double(), small.double(), 1e-10)


@pytest.mark.parametrize("model_type", ROTARY)
def test_inspection_says_why_rotary_and_normed_keys_are_left_alone(model_type):
    found = {offer.rewrite: offer for offer in offers(tiny(model_type), describe(tiny(model_type)), SINGLE, seq_len=16)}
    word = "normed" if model_type == "qwen3" else "rotary"
    assert not found["centred-keys"].possible
    assert word in found["centred-keys"].why
    assert set(found) == set(REWRITES)
    assert all(offer.why for offer in found.values() if not offer.possible)


@pytest.mark.parametrize("model_type", ["bert", "opt", "vit"])
def test_one_head_collapses_to_one_matrix(model_type):
    """H = 1: the interpolation of W_k picks every column, so keys are x itself and W_q is the one matrix left."""
    one = {"num_attention_heads": 1}
    model = planted(model_type, **one)
    small, (saving,) = rewritten(model, ["interpolation"], DOUBLE, seq_len=16)
    same(model, small, 1e-10)
    assert saving.implicit == 3 * 2 * 32**2  # all of W_k and all of W_v, in three blocks
    site = heads_of(describe(model), 1)
    (W_q, b_q), (W_k, _) = mapped_part(model, site, 0), mapped_part(model, site, 1)
    merged, w = collapsed(W_q, b_q, W_k)
    (new_q, new_bias), (order, _) = mapped_part(small, site, 0), mapped_part(small, site, 1)
    assert torch.equal(order.sort(1).values[:, :-1].any(), torch.tensor(False))  # a permutation: one 1 in every row
    torch.testing.assert_close(order.mT @ new_q, merged.mT, rtol=0, atol=1e-10)
    torch.testing.assert_close(order.mT @ new_bias, w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_merging_pays_for_one_head_alone(heads):
    """H matrices of D × D against two of D × D: fewer for one head, as many for two. The gauge saves D²/H for any H."""
    model = planted("bert", num_attention_heads=heads)
    _, (saving,) = rewritten(model, ["interpolation"], DOUBLE, seq_len=16)
    D, gauge = 32, saving.implicit // (3 * 2)
    assert gauge == D * D // heads
    merged, pair = heads * D * D, 2 * D * D
    assert (merged < pair) == (heads == 1)
    assert pair - gauge <= merged
    assert (pair - gauge == merged) == (heads == 1)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_it_runs_in_training_mode_and_gradients_reach_every_weight(model_type):
    small, _ = rewritten(planted(model_type, *TOGETHER, dtype=torch.float32), IN_RECIPE, SINGLE, seq_len=16)
    out = small(**tiny_batches(small, 1, rows=2)[0].inputs).logits
    out.square().mean().backward()
    assert [name for name, parameter in small.named_parameters() if parameter.grad is None] == []

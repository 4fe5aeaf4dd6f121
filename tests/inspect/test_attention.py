"""Spectra of attention: matrices whose spectrum is known, nulls that are what they say, models left as they were."""

from __future__ import annotations

import pytest
import torch

from families import LENGTH, MODEL_TYPES, tiny, tiny_batches
from slimformer.calibrate.text import Batch
from slimformer.errors import TooFewTokens
from slimformer.inspect.attention import attention_spectra, block_attention, full_rows, shared_energy
from slimformer.inspect.nulls import allowed, iid_attention, logit_spread, low_rank_attention, shuffled_attention
from slimformer.models import FAMILIES, describe

N = 32


def looked_at(P, *, causal=False):
    return block_attention(0, P.expand(3, 2, N, N), width=8, causal=causal)


def test_a_head_that_looks_one_token_back_has_full_rank():
    found = looked_at(torch.eye(N).roll(-1, 0))
    assert found.real.energy_sum.tolist() == pytest.approx([0.25, 0.25])
    assert found.real.energy_squares.tolist() == pytest.approx([0.25, 0.25])
    assert found.real.effective_rank.tolist() == pytest.approx([N, N])


def test_a_head_that_looks_everywhere_has_rank_one():
    found = looked_at(torch.full((N, N), 1 / N))
    assert found.real.energy_sum.tolist() == pytest.approx([1, 1], abs=1e-6)
    assert found.entropy.tolist() == pytest.approx([1, 1])
    assert found.spread.tolist() == pytest.approx([0, 0], abs=1e-6)


def test_a_projection_for_all_inputs_keeps_all_only_if_inputs_agree():
    P = torch.randn(6, 1, N, N).mul(3).softmax(-1)
    one = P[:1].expand(6, 1, N, N)
    agreeing = block_attention(0, one, width=8, causal=False)
    assert torch.allclose(shared_energy(one), agreeing.real.energy_squares, atol=1e-4)
    assert float(shared_energy(P)) < float(block_attention(0, P, width=8, causal=False).real.energy_squares) - 0.1


@pytest.mark.parametrize("causal", [False, True])
def test_nulls_are_attention_with_the_mask_and_spread_asked_for(causal):
    mask, s = allowed(N, causal=causal), torch.tensor([0.5, 3.0], dtype=torch.float64)
    for P in (iid_attention(s, mask, seed=0), low_rank_attention(s, mask, 8, seed=0)):
        assert torch.allclose(P.sum(-1), torch.ones(2, N, dtype=torch.float64))
        assert bool((P[:, ~mask] == 0).all())
        assert torch.allclose(logit_spread(P, mask), s, rtol=0.2)
    logits = low_rank_attention(s[:1], allowed(N, causal=False), 8, seed=0)[0].log()
    assert int(torch.linalg.matrix_rank(logits - logits.mean(1, keepdim=True), rtol=1e-9)) <= 8


@pytest.mark.parametrize("causal", [False, True])
def test_shuffled_rows_keep_what_is_in_them(causal):
    mask = allowed(N, causal=causal)
    P = torch.randn(2, N, N).masked_fill(~mask, -torch.inf).softmax(-1)
    Q = shuffled_attention(P, mask, seed=0)
    assert torch.equal(Q.sort(-1).values, P.sort(-1).values)
    assert not torch.equal(Q, P)
    assert bool((Q[:, ~mask] == 0).all())


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_model_is_looked_at_and_left_as_it_was(model_type):
    model = tiny(model_type)
    architecture, kind = describe(model), model.config._attn_implementation
    length = 17 if FAMILIES[model_type].image else LENGTH
    rows = full_rows(tiny_batches(model), length, 4)
    blocks = list(attention_spectra(model, architecture, rows))
    assert [block.block for block in blocks] == [0, 1, 2]
    assert all(len(block.real.energy_sum) == 4 and len(block.real.curve_sum) == length for block in blocks)
    assert model.config._attn_implementation == kind


def test_the_matrices_are_those_of_the_whole_model():
    model = tiny("bert")
    rows = full_rows(tiny_batches(model), LENGTH, 3)
    blocks = list(attention_spectra(model, describe(model), rows))
    model.set_attn_implementation("eager")
    ids = torch.cat([row.inputs["input_ids"] for row in rows])
    with torch.inference_mode():
        attentions = model(input_ids=ids, output_attentions=True).attentions
    for block, P in zip(blocks, attentions, strict=True):
        assert torch.allclose(block.mean_map, P.mean((0, 1)), atol=1e-5)


def test_only_whole_rows_count():
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = False
    batch = Batch({"input_ids": torch.arange(18).view(3, 6)}, mask)
    found = full_rows([batch], 6, 8)
    assert [row.inputs["input_ids"][0, 0].item() for row in found] == [0, 12]
    with pytest.raises(TooFewTokens, match="no text of the data has 7 tokens"):
        full_rows([batch], 7, 8)

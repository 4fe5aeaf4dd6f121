"""Slicing simulated at full width equals a model that is truly narrow, to which the MACs belong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benched import LENGTH, Evidence, assert_same, evidence_of
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from calibrated import outputs
from families import tiny
from simulated_slice import principal, sliced, sliced_cost, widest


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "opt", "vit"])
def test_full_width_is_exact(name: str) -> None:
    evidence = evidence_of(name)
    small = sliced(evidence, evidence.architecture.hidden)
    assert small.macs > 1  # skip matrices are not free
    assert_same(evidence, small.model)


@pytest.mark.parametrize("name", ["gpt2", "opt", "vit"])
def test_layer_norm_needs_one_direction_less(name: str) -> None:
    evidence = evidence_of(name)
    assert_same(evidence, sliced(evidence, evidence.architecture.hidden - 1).model)


@pytest.mark.parametrize("width", [32, 21])
def test_a_truly_narrow_model_says_the_same_and_costs_what_is_claimed(width: int) -> None:
    evidence = evidence_of("llama")
    small = sliced(evidence, width)
    narrow = Narrow(small.model, width)
    batch = evidence.select[0]
    logits = narrow(batch.inputs["input_ids"])
    torch.testing.assert_close(logits[batch.mask], outputs(small.model, batch), rtol=0, atol=1e-8)
    assert small.macs * evidence.dense.macs == pytest.approx(narrow.macs)


def test_no_wider_stream_fits_the_budget() -> None:
    evidence = evidence_of("llama")
    for budget in (0.9, 0.5):
        width = widest(evidence.architecture, LENGTH, budget)
        costs = [sliced_cost(evidence.architecture, LENGTH, w).macs for w in (width, width + 1)]
        assert costs[0] <= budget * evidence.dense.macs < costs[1]


@torch.no_grad()
def test_directions_nothing_is_written_to_cost_nothing() -> None:
    model = tiny("llama", tie_word_embeddings=False)
    model.get_input_embeddings().weight[:, 20:] = 0
    for block in model.model.layers:
        block.self_attn.o_proj.weight[20:] = 0
        block.mlp.down_proj.weight[20:] = 0
    evidence: Evidence = evidence_of(model)
    small = sliced(evidence, 20)
    assert small.macs < 0.9
    assert_same(evidence, small.model)


def test_directions_are_orthonormal_and_the_strongest() -> None:
    X = torch.randn(200, 6, dtype=torch.float64) * torch.tensor([9.0, 5, 3, 1, 0.1, 0.01])
    Q = principal([X[:120], X[120:]], 3, centre=False)
    torch.testing.assert_close(Q.mT @ Q, torch.eye(3, dtype=torch.float64))
    kept = (X / X.norm(dim=1, keepdim=True) @ Q).square().sum()
    for _ in range(20):
        other = torch.linalg.qr(torch.randn(6, 3, dtype=torch.float64)).Q
        assert (X / X.norm(dim=1, keepdim=True) @ other).square().sum() <= kept


class Narrow:
    """A LLaMA whose stream holds Qᵀh: every matrix it multiplies with is counted."""

    def __init__(self, model: Any, width: int) -> None:
        self.model, self.width, self.macs = model, width, 0

    def times(self, X: Tensor, A: Tensor) -> Tensor:
        self.macs += A.numel()
        return X @ A

    def norm(self, h: Tensor, eps: float) -> Tensor:
        return h * torch.rsqrt(h.square().sum(-1, keepdim=True) / self.model.config.hidden_size + eps)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> Tensor:
        body = self.model.model
        stream = body.embed_tokens(ids)
        turned = body.rotary_emb(stream, torch.arange(ids.shape[1])[None])
        Q = body.layers[0].slicing.before
        h = stream @ Q
        for block in body.layers:
            middle, after = block.slicing.between, block.slicing.after
            after = torch.eye(len(Q), dtype=Q.dtype) if after is None else after
            h = self.times(h, Q.mT @ middle) + self.attention(h, block, Q, middle, turned)
            h = self.times(h, middle.mT @ after) + self.feed_forward(h, block, middle, after)
            Q = after
        return self.model.lm_head(body.norm(h))

    def attention(self, h: Tensor, block: Any, Q: Tensor, out: Tensor, turned: Any) -> Tensor:
        x, attn = self.norm(h, block.input_layernorm.variance_epsilon), block.self_attn
        q, k, v = (
            self.times(x, self.read(block.input_layernorm, layer, Q)).unflatten(-1, (-1, attn.head_dim)).transpose(1, 2)
            for layer in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *turned)
        group = attn.num_key_value_groups
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        self.macs += 2 * LENGTH * q.shape[1] * attn.head_dim
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.times(mixed, attn.o_proj.weight.mT @ out)

    def feed_forward(self, h: Tensor, block: Any, Q: Tensor, out: Tensor) -> Tensor:
        x, mlp = self.norm(h, block.post_attention_layernorm.variance_epsilon), block.mlp
        gate, up = (
            self.times(x, self.read(block.post_attention_layernorm, layer, Q)) for layer in (mlp.gate_proj, mlp.up_proj)
        )
        return self.times(silu(gate) * up, mlp.down_proj.weight.mT @ out)

    @staticmethod
    def read(norm: nn.Module, layer: nn.Linear, Q: Tensor) -> Tensor:
        return Q.mT @ (layer.weight * norm.weight).mT

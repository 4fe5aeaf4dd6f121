"""Fewer blocks: those that do nothing go first, and a linear run can be replaced exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benched import LENGTH, SIMULATED, assert_same, evidence_of
from torch import Tensor, nn
from transformers import PreTrainedModel

import simulated_depth
from families import tiny
from simulated_depth import block_before_run, linear_map, merge
from slimformer.linalg.moments import Moments
from slimformer.models import describe
from slimformer.models.architecture import weight_of
from slimformer.plan.cost import block_cost


@pytest.fixture(autouse=True)
def hardly_any_ridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_depth, "RIDGES", (1e-12,))


@torch.no_grad()
def with_idle_blocks(name: str, *idle: int) -> PreTrainedModel:
    """Four blocks, some of which add nothing to the stream."""
    layers = {"gpt2": "n_layer"}.get(name, "num_hidden_layers")
    model = tiny(name, **{layers: 4})
    for site in describe(model):
        if site.block in idle:
            reader = model.get_submodule(site.reader)
            reader.weight.zero_()
            if reader.bias is not None:
                reader.bias.zero_()
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "vit"])
@pytest.mark.parametrize(("method", "idle"), [("shortgpt", (1, 3)), ("shortgpt", (0, 2)), ("replaceme", (2, 3))])
def test_blocks_that_do_nothing_go_first(method: str, name: str, idle: tuple[int, ...]) -> None:
    evidence = evidence_of(with_idle_blocks(name, *idle))
    small = SIMULATED[method].make(evidence, 0.5)
    assert small.sizes == {f"blocks.{i}": 0 for i in idle}
    assert_same(evidence, small.model)


@pytest.mark.parametrize("method", ["shortgpt", "replaceme"])
def test_macs_claimed_are_those_of_the_blocks_left(method: str) -> None:
    evidence = evidence_of("llama")
    small = SIMULATED[method].make(evidence, 0.7)
    left = describe(small.model)
    assert left.n_blocks == 2
    assert small.macs == block_cost(left, LENGTH).macs / evidence.dense.macs == pytest.approx(2 / 3)
    assert small.model.config.num_hidden_layers == 2


@torch.no_grad()
def test_a_linear_block_is_replaced_exactly() -> None:
    """The stream of block 1 is Y + M A where block 0 wrote Y + M: attention writes half of it, neurons the other."""
    model = tiny("llama", tie_word_embeddings=False)
    first, second = model.model.layers[:2]
    model.get_input_embeddings().weight[:, 16:] = 0
    first.self_attn.o_proj.weight[16:] = 0
    first.mlp.down_proj.weight[:16] = 0
    A = torch.eye(32, dtype=torch.float64)
    A[16:, 16:] += 0.1 * torch.randn(16, 16, dtype=torch.float64)
    usual = second.forward

    def linear(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        usual(hidden_states, *args, **kwargs)  # its parts are listened to
        return hidden_states @ A

    second.forward = linear
    evidence = evidence_of(model)
    small = SIMULATED["replaceme"].make(evidence, 0.7)
    assert small.sizes == {"blocks.1": 0}
    assert_same(evidence, small.model)


def test_a_replaced_run_is_nearer_to_the_dense_model_than_a_dropped_one() -> None:
    evidence = evidence_of("llama")
    replaced = SIMULATED["replaceme"].make(evidence, 0.7)
    dropped = tiny("llama").double()
    simulated_depth.drop_blocks(dropped, evidence.architecture, [int(name[-1]) for name in replaced.sizes])
    (batch,) = evidence.select
    after = [stream(model, batch.inputs) for model in (evidence.given.model, replaced.model, dropped)]
    assert (after[1] - after[0]).square().sum() < (after[2] - after[0]).square().sum()


@pytest.mark.parametrize("bias", [True, False])
def test_the_map_is_found_where_there_is_one(bias: bool) -> None:
    M, T = torch.randn(60, 5, dtype=torch.float64) + 1, torch.randn(5, 5, dtype=torch.float64)
    c = torch.randn(5, dtype=torch.float64) * bias
    found, constant = linear_map(Moments.of(torch.cat([M, M @ T + c], 1)), ridge=0.0, bias=bias)
    torch.testing.assert_close(found, T)
    torch.testing.assert_close(constant, c)


def test_a_merged_layer_writes_what_was_mapped() -> None:
    down, z = nn.Linear(7, 5).double(), torch.randn(9, 7, dtype=torch.float64)
    T, c = torch.randn(5, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    before = down(z)
    merge(down, T, c)
    torch.testing.assert_close(down(z), before @ T + c)
    assert weight_of(down).shape == (5, 7)


def test_the_run_is_where_the_stream_turns_least() -> None:
    cosines = torch.eye(5)
    cosines[0, 2], cosines[1, 3], cosines[2, 4] = 0.9, 0.1, 0.5  # from before block 0 it cannot be merged anywhere
    assert block_before_run(cosines, 2) == 1


def test_what_is_left_can_generate() -> None:
    evidence = evidence_of("llama")
    small = SIMULATED["shortgpt"].make(evidence, 0.7).model
    ids = torch.tensor([[5, 6, 7]])
    cached = small.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(cached, small.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False))


@torch.no_grad()
def stream(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """The last hidden states."""
    return model.base_model(**inputs).last_hidden_state

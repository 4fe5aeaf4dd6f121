"""The three modules of MoDeGPT, one by one, and an independent count of what is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benched import LENGTH, Evidence, assert_same, evidence_of
from torch import Tensor
from transformers import PreTrainedModel

from families import tiny
from simulated_modegpt import columns_to_keep, decomposed, head_rows, whitened_svd
from simulated_ranks import Ranks, allocation, ranks_at, ranks_cost
from slimformer.models import describe
from slimformer.models.architecture import weight_of


def full(evidence: Evidence) -> list[Ranks]:
    return [ranks_at(evidence, i, 1.0) for i in range(evidence.architecture.n_blocks)]


def counted(evidence: Evidence, model: PreTrainedModel) -> int:
    """MACs of what is not zero: rows written, columns read, and T for every query or value dimension of a head."""
    macs = 0
    for site in evidence.architecture:
        rows = [head_rows(model, writer)[0].abs().sum(-1).gt(0) for writer in site.writers]
        columns = weight_of(model.get_submodule(site.reader)).abs().sum(0).gt(0)
        macs += site.outer * (sum(int(row.sum()) for row in rows) + int(columns.sum()))
        if site.kind == "attn.heads":
            macs += LENGTH * (int(rows[0].sum()) + int(columns.sum()))
    return macs


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "opt", "bert", "vit"])
def test_macs_claimed_are_those_of_the_weights_left(name: str) -> None:
    evidence = evidence_of(name)
    small = decomposed(evidence, allocation(evidence, 0.6, 0.1))
    assert small.macs * evidence.dense.macs == pytest.approx(counted(evidence, small.model))
    assert counted(evidence, evidence.given.model) == evidence.dense.macs


def test_nothing_more_fits_the_budget() -> None:
    evidence = evidence_of("llama")
    most = 0.7 * evidence.dense.macs
    ranks = allocation(evidence, 0.7, 0.3)
    assert ranks_cost(evidence, ranks).macs <= most
    for i, rank in enumerate(ranks):
        more = [*ranks[:i], replace(rank, neurons=rank.neurons + 1), *ranks[i + 1 :]]
        assert ranks_cost(evidence, more).macs > most


def test_blocks_that_turn_the_stream_less_keep_less() -> None:
    evidence = evidence_of("llama")
    kept = [rank.neurons for rank in allocation(evidence, 0.6, 0.1)]
    order = evidence.influence.argsort().tolist()
    assert [kept[i] for i in order] == sorted(kept)
    assert len(set(kept)) > 1
    even = [rank.neurons for rank in allocation(evidence, 0.6, float("inf"))]
    assert max(even) - min(even) <= 1


@torch.no_grad()
def test_planes_without_energy_go_first_and_cost_nothing() -> None:
    model = tiny("llama")
    heads = describe(model).blocks[1].heads[0]
    W, _ = head_rows(model, heads.writers[1])  # keys: two heads of four planes (c, c + 4)
    W[0, [1, 5]] = 0
    W[1, [2, 6]] = 0
    evidence = evidence_of(model)
    ranks = full(evidence)
    ranks[1] = replace(ranks[1], qk=6)
    small = decomposed(evidence, ranks)
    assert small.macs < 1
    assert_same(evidence, small.model)


@torch.no_grad()
def test_a_plane_stays_while_any_query_of_its_group_uses_it() -> None:
    model = tiny("llama")
    W, _ = head_rows(model, describe(model).blocks[1].heads[0].writers[0])  # queries 0 and 1 share a key, as do 2 and 3
    W[:, [1, 5]] = 0  # no query uses plane 1
    W[::2, [3, 7]] = 0  # one of two uses plane 3
    evidence = evidence_of(model)
    ranks = full(evidence)
    ranks[1] = replace(ranks[1], qk=6)
    assert_same(evidence, decomposed(evidence, ranks).model)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "bert"])
@torch.no_grad()
def test_values_of_low_rank_lose_nothing_at_that_rank(name: str) -> None:
    model = tiny(name)
    heads = describe(model).blocks[1].heads[0]
    W, _ = head_rows(model, heads.writers[2])
    W[:, 5:] = W[:, :3]  # rank 5 of 8 in every head; biases stay what they are
    evidence = evidence_of(model)
    ranks = full(evidence)
    ranks[1] = replace(ranks[1], vo=5)
    assert_same(evidence, decomposed(evidence, ranks).model)


@torch.no_grad()
def test_copied_neurons_lose_nothing() -> None:
    model = tiny("llama")
    ffn = describe(model).blocks[2].neurons[0]
    for writer in ffn.writers:
        W = weight_of(model.get_submodule(writer.module))
        W[24:] = W[:24]
    evidence = evidence_of(model)
    ranks = full(evidence)
    ranks[2] = replace(ranks[2], neurons=ffn.units - 1)
    assert_same(evidence, decomposed(evidence, ranks).model)


def test_planes_stay_whole_and_the_best_are_kept() -> None:
    energy_q = torch.tensor([[9.0, 1.0, 2.0, 0.0, 1.0, 2.0]])
    energy_k = torch.tensor([[1.0, 5.0, 1.0, 1.0, 5.0, 1.0]])
    assert columns_to_keep(energy_q, energy_k, 4, 2).tolist() == [[True, True, False, True, True, False]]
    assert columns_to_keep(energy_q, energy_k, 3, 1).tolist() == [[True, True, False, False, True, False]]


def test_the_error_of_a_rank_is_what_is_cut_off_of_the_spectrum() -> None:
    X, W = torch.randn(50, 6, dtype=torch.float64), torch.randn(9, 6, dtype=torch.float64)
    C = X.mT @ X / len(X)
    spectrum = torch.linalg.svdvals(X @ W.mT / len(X) ** 0.5)[:6].square()
    for rank in range(1, 7):
        S, E = whitened_svd(C, W, rank)
        torch.testing.assert_close(error(C, W, E @ S), spectrum[rank:].sum(), atol=1e-9, rtol=0)
        assert error(C, W, E @ S) <= error(C, W, torch.linalg.qr(torch.randn(6, rank).double()).Q @ S)


def error(C: Tensor, W: Tensor, P: Tensor) -> Tensor:
    """E ‖W (I − P) v‖²."""
    left = W @ (torch.eye(len(C), dtype=C.dtype) - P)
    return (left @ C @ left.mT).trace()

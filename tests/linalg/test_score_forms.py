"""Errors of simpler score forms: against the matrices themselves, and against scores on data."""

import pytest
import torch

from slimformer.linalg.score_forms import half_rank_error, null_forms, one_for_all_error, score_forms
from slimformer.linalg.symmetry import shared_basis, symmetry_errors

H, RANK, D = 3, 4, 10


@pytest.fixture
def heads():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, H, RANK, D, generator=generator, dtype=torch.float64).unbind()


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(400, D, generator=generator, dtype=torch.float64) * torch.linspace(0.2, 2, D) + 0.5
    return X


def test_on_white_data_errors_are_those_of_the_matrices(heads):
    eye = torch.eye(D, dtype=torch.float64)
    found = score_forms(*heads, eye, torch.ones(D, dtype=torch.float64))
    G = heads[0].mT @ heads[1]
    σ = torch.linalg.svdvals(G)
    half = (σ[:, RANK // 2 :].square().sum(1) / σ.square().sum(1)).sqrt()
    assert torch.allclose(found.half_rank, half)
    assert torch.allclose(found.symmetric, symmetry_errors(*heads).asymmetry)
    assert found.one_for_all == pytest.approx(float((G - G.mean(0)).norm() / G.norm()))


def test_under_data_errors_are_those_of_the_scores(heads, data):
    """Queries and keys drawn independently: every row with every row, keys centred."""
    centred = data - data.mean(0)
    M, C = data.mT @ data / len(data), centred.mT @ centred / len(data)
    T, m = shared_basis(M, C, ridge=0.0)
    found = score_forms(*heads, T, m)
    G = heads[0].mT @ heads[1]
    scores = data @ G @ centred.mT
    mean = data @ G.mean(0) @ centred.mT
    assert found.one_for_all == pytest.approx(float((scores - mean).norm() / scores.norm()), rel=1e-9)
    σ = torch.linalg.svdvals(scores)
    half = (σ[:, RANK // 2 :].square().sum(1) / σ.square().sum(1)).sqrt()
    assert torch.allclose(found.half_rank, half, rtol=1e-6)


def test_forms_that_fit_miss_nothing(heads):
    W_q, W_k = heads
    eye, ones = torch.eye(D, dtype=torch.float64), torch.ones(D, dtype=torch.float64)
    assert float(score_forms(W_q, W_q, eye, ones).symmetric.max()) < 1e-7
    same = W_q[:1].expand(H, -1, -1), W_k[:1].expand(H, -1, -1)
    assert one_for_all_error(*same) < 1e-7
    low = W_q.clone()
    low[:, RANK // 2 :] = 0
    assert float(half_rank_error(low, W_k).max()) < 1e-7


def test_random_heads_are_as_the_null_says():
    eye, ones = torch.eye(64, dtype=torch.float64), torch.ones(64, dtype=torch.float64)
    null = null_forms(8, 16, eye, ones)
    assert float(null.symmetric.mean()) == pytest.approx(0.5**0.5, abs=0.02)
    assert null.one_for_all == pytest.approx((1 - 1 / 8) ** 0.5, abs=0.02)


def test_without_heads_there_is_nothing_to_miss():
    none = torch.zeros(0, 4, 6, dtype=torch.float64)
    found = score_forms(none, none, torch.eye(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64))
    assert len(found.symmetric) == len(found.half_rank) == 0 and found.one_for_all == 0

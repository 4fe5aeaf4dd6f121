"""Symmetric forms of scores: errors against the dense matrices, and that nothing symmetric is nearer."""

from __future__ import annotations

import pytest
import torch

from slimformer.linalg.symmetry import shared_basis, symmetry_error_on_data, symmetry_errors

HEADS, RANK, WIDTH = 3, 4, 15


@pytest.fixture
def heads():
    return torch.randn(2, HEADS, RANK, WIDTH, dtype=torch.float64)


def dense(heads):
    return heads[0].mT @ heads[1]


def test_errors_are_those_of_the_dense_matrices(heads):
    found = symmetry_errors(*heads)
    for h, G in enumerate(dense(heads)):
        S, whole = (G + G.T) / 2, G.norm()
        λ, U = torch.linalg.eigh(S)
        by_size = λ.abs().argsort(descending=True)[:RANK]
        positive = [i for i in λ.argsort(descending=True)[:RANK].tolist() if λ[i] > 0]
        nearest = {"asymmetry": S}
        for name, kept in (("symmetric", by_size.tolist()), ("tied", positive)):
            nearest[name] = (U[:, kept] * λ[kept]) @ U[:, kept].T
        for name, X in nearest.items():
            assert float(getattr(found, name)[h]) == pytest.approx(float((G - X).norm() / whole), abs=1e-9)


def test_tied_heads_are_symmetric_and_skew_ones_are_not(heads):
    W, _ = heads
    tied = symmetry_errors(W, W)
    assert max(float(error.max()) for error in (tied.asymmetry, tied.symmetric, tied.tied)) < 1e-6
    half = RANK // 2
    turned = torch.cat([W[:, half:], -W[:, :half]], dim=1)  # G = Σ a bᵀ − b aᵀ
    assert torch.allclose(symmetry_errors(W, turned).asymmetry, torch.ones(HEADS, dtype=torch.float64))


def test_random_heads_are_half_symmetric():
    found = symmetry_errors(*torch.randn(2, 8, 16, 400)).asymmetry
    assert torch.allclose(found, torch.full_like(found, 0.5**0.5), atol=0.03)


def test_without_heads_or_ranks_there_is_no_error():
    assert symmetry_errors(*torch.randn(2, 0, 4, 9)).tied.shape == (0,)
    assert symmetry_errors(*torch.randn(2, 3, 0, 9)).asymmetry.tolist() == [0, 0, 0]


def test_a_shared_basis_gives_both_moments_back():
    X, Y = torch.randn(2, 60, WIDTH, dtype=torch.float64)
    M, C = X.T @ X, Y.T @ Y
    T, m = shared_basis(M, C, ridge=0.0)
    assert torch.allclose(T @ T.T, C, rtol=1e-6, atol=1e-8)
    assert torch.allclose((T * m) @ T.T, M, rtol=1e-6, atol=1e-8)


def test_on_white_data_the_error_is_the_asymmetry(heads):
    eye = torch.eye(WIDTH, dtype=torch.float64)
    assert torch.allclose(symmetry_error_on_data(*heads, *shared_basis(eye, eye)), symmetry_errors(*heads).asymmetry)


def test_no_symmetric_form_has_a_smaller_error_of_scores(heads):
    scale = torch.logspace(0, -2, WIDTH, dtype=torch.float64)
    X, Y = (torch.randn(80, WIDTH, dtype=torch.float64) * scale for _ in range(2))
    M, C = (X + 0.2).T @ (X + 0.2) / 80, Y.T @ Y / 80
    found = symmetry_error_on_data(*heads, *shared_basis(M, C, ridge=0.0))
    for h, G in enumerate(dense(heads)):
        S = ((G + G.T) / 2).requires_grad_()

        def error(S, G=G):
            Δ = G - (S + S.T) / 2
            return torch.trace(Δ.T @ M @ Δ @ C) / torch.trace(G.T @ M @ G @ C)

        assert float(found[h]) <= float(error(S.detach()).sqrt()) + 1e-9
        optimiser = torch.optim.LBFGS([S], max_iter=500, tolerance_grad=1e-14, line_search_fn="strong_wolfe")

        def closure(S=S, error=error, optimiser=optimiser):
            optimiser.zero_grad()
            loss = error(S)
            loss.backward()
            return loss

        optimiser.step(closure)
        assert float(found[h]) == pytest.approx(float(error(S.detach()).sqrt()), rel=2e-2)
        assert float(found[h]) <= float(error(S.detach()).sqrt()) + 1e-7

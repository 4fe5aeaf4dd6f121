"""A table by two thin matrices: the least weighted error at every rank, and no row or moment that breaks it."""

import pytest
import torch
from torch import Tensor

from slimformer.decompose.factored import Factored, factored

V, D = 40, 6


def _problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(V, D, generator=g, dtype=torch.float64)
    X = torch.randn(3 * D, D, generator=g, dtype=torch.float64) * torch.linspace(3, 0.2, D, dtype=torch.float64)
    return W, torch.rand(V, generator=g, dtype=torch.float64), X.mT @ X / len(X)


def _error(W: Tensor, f: Tensor, C: Tensor, A: Tensor, B: Tensor) -> float:
    E = W - A @ B
    return float(torch.einsum("v,vi,ij,vj->", f, E, C, E))


def _alternating(W: Tensor, f: Tensor, C: Tensor, r: int) -> float:
    """The same least error by another route: in turns the best A for B and the best B for A."""
    B = torch.randn(r, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    A = torch.empty(V, r, dtype=torch.float64)
    for _ in range(400):
        A = torch.linalg.solve(B @ C @ B.mT, B @ C @ W.mT).mT
        B = torch.linalg.solve(A.mT @ (f[:, None] * A), A.mT @ (f[:, None] * W))
    return _error(W, f, C, A, B)


@pytest.mark.parametrize("r", [1, 3, 5])
def test_no_factors_of_this_rank_do_better(r: int) -> None:
    W, f, C = _problem()
    A, B = factored(W, f, C, ridge=0.0).at(W, r)
    assert A.shape == (V, r) and B.shape == (r, D)
    assert _error(W, f, C, A, B) == pytest.approx(_alternating(W, f, C, r), rel=1e-6)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_errors_are_those_of_the_factors_also_under_other_moments(ridge: float) -> None:
    W, f, C = _problem()
    other = _problem(1)[2]
    of = factored(W, f, C, ridge=ridge)
    for moments in (C, other):
        errors = of.errors(moments)
        measured = [_error(W, f, moments, *of.at(W, r)) for r in range(D + 1)]
        torch.testing.assert_close(errors, torch.tensor(measured, dtype=torch.float64), atol=1e-9, rtol=1e-9)


def test_without_weights_and_metric_it_is_the_singular_value_decomposition() -> None:
    W, _, _ = _problem()
    eye = torch.eye(D, dtype=torch.float64)
    errors = factored(W, torch.ones(V), eye, ridge=0.0).errors(eye)
    squares = torch.linalg.svdvals(W).square()
    torch.testing.assert_close(errors[:-1], squares.flip(0).cumsum(0).flip(0))


def test_full_rank_gives_the_table_back_and_zeros_stay_zeros() -> None:
    W, f, C = _problem()
    W[7], f[3] = 0.0, 0.0
    of = factored(W, f, C, ridge=1e-3)
    A, B = of.at(W, D)
    torch.testing.assert_close(A @ B, W)
    thin, basis = of.at(W, 2)
    assert torch.equal(thin[7], torch.zeros(2, dtype=torch.float64))
    assert float((thin[3] @ basis).norm()) > 0, "a token that never occurs is still written"


def test_singular_moments_and_a_narrow_precision() -> None:
    W, f, _ = _problem()
    x = torch.randn(2, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    of: Factored = factored(W.float(), f, x.mT @ x, ridge=1e-3)
    A, B = of.at(W.float(), 3)
    assert A.dtype == B.dtype == torch.float32 and bool((A @ B).isfinite().all())
    assert float(of.errors(x.mT @ x)[2]) < 1e-2 * float(of.errors(x.mT @ x)[0]), "two directions are all there is"

"""Pivots of a Gram matrix are those of column-pivoted QR of the rows behind it."""

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.testing import assert_allclose

from slimformer.linalg.pivoted_cholesky import constrained_pivots, pivots


def rows(n: int = 80, d: int = 12) -> torch.Tensor:
    """Correlated columns of different sizes."""
    return torch.randn(n, d, dtype=torch.float64) @ torch.randn(d, d, dtype=torch.float64)


def anything(d):
    return lambda J: [i for i in range(d) if i not in J]


def test_pivots_are_those_of_pivoted_qr():
    for seed in range(5):
        torch.manual_seed(seed)
        X = rows()
        R, P = scipy.linalg.qr(X.numpy(), mode="r", pivoting=True)
        order, r = pivots(X.mT @ X)
        assert order.tolist() == P.tolist()
        assert_allclose(r.numpy(), np.abs(np.diag(R)), rtol=1e-9)


def test_pivots_without_constraint_are_pivots():
    for seed in range(5):
        torch.manual_seed(seed)
        X = rows(d=7)
        order, r = pivots(X.mT @ X)
        free, s = constrained_pivots(X.mT @ X, anything(7))
        assert free.tolist() == order.tolist()
        assert_allclose(s.numpy(), r.numpy(), rtol=1e-9)


def test_constrained_pivots_are_the_largest_residuals_allowed():
    X, halves = rows(d=8), [{0, 1, 2, 3}, {4, 5, 6, 7}]

    def allowed(J):
        rest = [i for i in range(8) if i not in J]
        return [i for i in rest if i in halves[len(J) % 2]]

    order, r = constrained_pivots(X.mT @ X, allowed)
    for k in range(8):
        kept = X[:, order[:k]].numpy()
        residual = {i: np.linalg.norm(_off(X[:, i].numpy(), kept)) for i in allowed(order[:k].tolist())}
        assert int(order[k]) == max(residual, key=residual.get)
        assert float(r[k]) == pytest.approx(residual[int(order[k])], rel=1e-8)


def _off(x, A):
    """What is left of x after least squares on the columns of A."""
    return x - A @ np.linalg.lstsq(A, x, rcond=None)[0]


@pytest.mark.parametrize("way", [pivots, lambda G: constrained_pivots(G, anything(len(G)))])
def test_combinations_of_others_come_last_with_no_pivot(way):
    X = rows(d=5)
    X = torch.cat([X[:, :2] @ torch.randn(2, 3, dtype=torch.float64), X], dim=1)  # 8 columns, rank 5
    order, r = way(X.mT @ X)
    assert sorted(order.tolist()) == list(range(8))
    assert np.linalg.matrix_rank(X[:, order[:5]].numpy()) == 5
    assert (r[:5] > 0).all()
    assert float(r[5:].max()) < 1e-5 * float(r[0])


@pytest.mark.parametrize("way", [pivots, lambda G: constrained_pivots(G, anything(len(G)))])
def test_dead_coordinates_come_last(way):
    X = rows(d=6)
    X[:, [1, 4]] = 0
    assert way(X.mT @ X)[0][4:].tolist() == [1, 4]


def test_an_all_zero_gram_has_rank_zero():
    order, r = pivots(torch.zeros(4, 4, dtype=torch.float64))
    assert order.tolist() == [0, 1, 2, 3]
    assert r.tolist() == [0, 0, 0, 0]


def test_the_order_does_not_depend_on_the_scale():
    X = rows()
    G = X.mT @ X
    assert pivots(1e-12 * G)[0].tolist() == pivots(1e12 * G)[0].tolist() == pivots(G)[0].tolist()

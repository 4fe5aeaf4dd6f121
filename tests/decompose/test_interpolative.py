"""The interpolative method is STAT: pivoted QR of the activations, without the activations."""

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.testing import assert_allclose
from widths import RIDGE, make

from slimformer.decompose import select
from slimformer.decompose.interpolative import head_gram, interpolative


def pivoted_qr(Z):
    R, P = scipy.linalg.qr(Z, mode="r", pivoting=True)
    return R[: Z.shape[1]], P


@pytest.fixture(params=range(3))
def seed(request):
    torch.manual_seed(request.param)


def scaled(rows):
    """The columns of X times the norms of what reads them: what STAT factors."""
    X = rows.X - rows.X.mean(0) if rows.width.bias else rows.X
    return (X * rows.width.W.norm(dim=0)).numpy()


@pytest.mark.parametrize("bias", [False, True])
def test_neurons_are_ordered_by_pivoted_qr_of_the_scaled_activations(seed, bias):
    rows = make(bias=bias)
    R, P = pivoted_qr(scaled(rows))
    curve = interpolative(rows.width, ridge=RIDGE)
    assert list(curve.order) == P.tolist()
    assert_allclose(curve.pivots, np.abs(np.diag(R)) / np.sqrt(len(rows.X)), rtol=1e-8)


def test_the_tail_is_the_norm_of_the_rest_of_r(seed):
    rows = make()
    R, _ = pivoted_qr(scaled(rows))
    expected = [np.linalg.norm(R[k:, k:]) / np.sqrt(len(rows.X)) for k in range(9)]
    assert_allclose(interpolative(rows.width, ridge=RIDGE).tail, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [1, 4, 7])
def test_the_transfer_is_the_one_of_pivoted_qr(seed, size):
    rows = make()
    Z, w = scaled(rows), rows.width.W.norm(dim=0).numpy()
    R, P = pivoted_qr(Z)
    T = scipy.linalg.solve_triangular(R[:size, :size], R[:size, size:])  # Z[:, rest] ≈ Z[:, kept] T
    T = T * w[P[:size], None] / w[None, P[size:]]  # the same for X
    kept = select(rows.width, P.tolist(), size, ridge=0.0)
    E = kept.E[:, np.argsort(np.argsort(P[:size]))]  # columns in the order of the pivots
    assert_allclose(E[P[size:]].numpy(), T.T, rtol=1e-6, atol=1e-8)


def tall(rows, d):
    """A head is one column, with a row for every token and coordinate: (tokens · d) × heads, as STAT forms it."""
    n, h = len(rows.X), rows.width.units
    return rows.X.reshape(n, h, d).permute(0, 2, 1).reshape(n * d, h).numpy()


def test_heads_are_ordered_by_pivoted_qr_of_the_tall_matrix(seed):
    rows = make(unit=3, units=6)
    R, P = pivoted_qr(tall(rows, 3))
    curve = interpolative(rows.width, ridge=RIDGE)
    assert list(curve.order) == P.tolist()
    assert_allclose(curve.pivots, np.abs(np.diag(R)) / np.sqrt(len(rows.X)), rtol=1e-8)


def test_the_gram_matrix_of_heads_is_that_of_the_tall_matrix():
    rows = make(unit=3, units=6)
    Z = tall(rows, 3)
    assert_allclose(head_gram(rows.X.mT @ rows.X, 3).numpy(), Z.T @ Z, rtol=1e-10)


def test_head_errors_are_those_of_stat_in_the_right_order(seed):
    """‖q[:, d i:] R1[d i:, d i:] W_oᵀ‖ for "keep i heads", the columns of W_o permuted as those of the activations.

    The released program permutes twice where it means to undo; this is what it meant.
    """
    d, h = 3, 6
    rows = make(unit=d, units=h)
    _, P = pivoted_qr(tall(rows, d))
    columns = (P[:, None] * d + np.arange(d)).flatten()
    q, R1 = scipy.linalg.qr(rows.X.numpy()[:, columns], mode="economic")
    W = rows.width.W.numpy()[:, columns]
    expected = [np.linalg.norm(q[:, j:] @ R1[j:, j:] @ W[:, j:].T) for j in range(0, d * h + 1, d)]
    found = np.sqrt(len(rows.X) * np.array(interpolative(rows.width, ridge=RIDGE).fit))
    assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


def test_a_group_is_not_asked_twice_before_every_group_was_asked():
    curve = interpolative(make(unit=2, group=3, units=9).width, ridge=RIDGE)
    for turn in (curve.order[:3], curve.order[3:6], curve.order[6:]):
        assert sorted(u // 3 for u in turn) == [0, 1, 2]

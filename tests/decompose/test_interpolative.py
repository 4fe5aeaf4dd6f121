"""The interpolative method is STAT: pivoted QR of the activations, without the activations."""

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.testing import assert_allclose
from widths import RIDGE, Rows, make, of

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


def decaying(power: float, d: int = 12) -> Rows:
    """Rows whose spectrum falls by a power, in a random basis; a reader with columns of different lengths."""
    basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    X = torch.randn(200, d, dtype=torch.float64) * torch.arange(1, d + 1).double() ** -power @ basis.mT
    return of(X, X, torch.randn(6, d, dtype=torch.float64) * torch.rand(d, dtype=torch.float64))


@pytest.mark.parametrize("power", [0.0, 1.0, 3.0])
def test_the_error_is_bounded_at_every_size_before_and_after_it_is_measured(seed, power):
    """docs/methods/interpolative.md, "Bounded error": the four inequalities, and that none of them is empty."""
    rows = decaying(power)
    curve, d = interpolative(rows.width, ridge=RIDGE), rows.width.units
    σ = np.linalg.svd(scaled(rows), compute_uv=False) / np.sqrt(len(rows.X))
    through = np.linalg.svd((rows.X @ rows.width.W.mT).numpy(), compute_uv=False) / np.sqrt(len(rows.X))
    slack = 1 + 1e-6
    for k in range(d):
        r, tail, error = curve.pivots[k], curve.tail[k], curve.fit[k]
        assert tail >= np.linalg.norm(σ[k:]) / slack  # Eckart–Young: no map of rank k does better
        assert tail <= np.sqrt(d - k) * r * slack  # known from the next pivot alone
        assert r <= np.sqrt(4 ** (k + 1) + 6 * (k + 1) - 1) / 3 * σ[k] * slack  # Lawson & Hanson
        assert error <= (d - k) * tail**2 * slack  # what the reader makes of it
        assert error >= np.square(through[k:]).sum() / slack - 1e-12
    assert curve.tail[d // 2] > 0.5 * np.linalg.norm(σ[d // 2 :])  # of the size of what it bounds


def test_the_matrix_of_kahan_costs_pivoted_qr_more_than_the_best_columns():
    """Every column has the same norm left, so columns are taken as they stand; the worst case is a real one."""
    d, θ = 24, 1.2
    s, c = np.sin(θ), np.cos(θ)
    K = np.diag(s ** np.arange(d)) @ (np.eye(d) - c * np.triu(np.ones((d, d)), 1)) @ np.diag(1 - 1e-9 * np.arange(d))
    X = torch.from_numpy(K) * d**0.5
    curve = interpolative(of(X, X, torch.eye(d, dtype=torch.float64)).width, ridge=1e-14)
    σ = np.linalg.svd(K, compute_uv=False)
    assert list(curve.order) == list(range(d))
    assert curve.pivots[-1] > 10 * σ[-1]  # where random and trained matrices stay below two
    assert curve.pivots[-1] <= np.sqrt(4.0**d + 6 * d - 1) / 3 * σ[-1]

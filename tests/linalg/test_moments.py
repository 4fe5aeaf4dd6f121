"""Moments are a commutative monoid of streams of rows; precision is lost nowhere."""

import numpy as np
import pytest
import torch

from slimformer.linalg import moments
from slimformer.linalg.moments import Moments, Sums


def whole_numbers(rows: int, d: int = 6) -> torch.Tensor:
    """Rows whose moments are exact in float64, so that laws hold bit for bit."""
    return torch.randint(-99, 99, (rows, d)).double()


def same(a: Moments, b: Moments) -> bool:
    return a.count == b.count and torch.equal(a.sum, b.sum) and torch.equal(a.gram, b.gram)


def test_nothing_is_the_neutral_element():
    m = Moments.of(whole_numbers(9))
    assert same(m + Moments.zero(6), m)
    assert same(Moments.zero(6) + m, m)
    assert same(Moments.of(whole_numbers(0)), Moments.zero(6))


def test_addition_is_commutative_and_associative():
    a, b, c = (Moments.of(whole_numbers(rows)) for rows in (1, 5, 17))
    assert same(a + b, b + a)
    assert same((a + b) + c, a + (b + c))


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_moments_do_not_depend_on_batching(size):
    X = whole_numbers(40)
    parts = [Moments.of(part) for part in X.split(size)]
    assert same(sum(parts, Moments.zero(6)), Moments.of(X))


@pytest.mark.parametrize("size", [1, 7, 40])
def test_sums_of_batches_are_those_of_all_rows(size):
    X = whole_numbers(40)
    sums = Sums()
    for part in X.split(size):
        sums.add(part)
    assert same(sums.moments(), Moments.of(X))


def test_batches_may_have_other_means_than_the_first():
    first, others = torch.randn(400, 16) + 1002, torch.randn(6000, 16) + 998
    single, double = Sums().add(first).add(others).moments(), Moments.of(torch.cat([first, others]).double())
    single, double = single.second(centred=True), double.second(centred=True)
    assert (single - double).norm() <= 1e-5 * double.norm()


def test_moments_do_not_depend_on_order():
    X = whole_numbers(40)
    assert same(Moments.of(X[torch.randperm(40)]), Moments.of(X))


def test_moments_do_not_depend_on_the_chunk_that_is_multiplied_at_once(monkeypatch):
    X = whole_numbers(40)
    whole = Moments.of(X)
    monkeypatch.setattr(moments, "ROWS", 3)
    assert same(Moments.of(X), whole)


def test_count_sum_and_gram_are_what_they_say():
    X = torch.randn(50, 6, dtype=torch.float64)
    m = Moments.of(X)
    assert (m.count, m.width) == (50, 6)
    assert torch.allclose(m.sum, X.sum(0), rtol=1e-12)
    assert torch.allclose(m.gram, X.mT @ X, rtol=1e-12)


@pytest.mark.parametrize("centred", [True, False])
def test_second_moments_are_those_of_numpy(centred):
    X = torch.randn(50, 6, dtype=torch.float64) + 3
    expected = np.cov(X.numpy(), rowvar=False, bias=True) if centred else X.numpy().T @ X.numpy() / 50
    np.testing.assert_allclose(Moments.of(X).second(centred=centred).numpy(), expected, rtol=1e-10, atol=1e-12)


def test_single_precision_rows_lose_less_than_a_millionth():
    X = torch.randn(20_000, 48).relu()
    single, double = Moments.of(X), Moments.of(X.double())
    assert single.gram.dtype == single.sum.dtype == torch.float64
    assert (single.gram - double.gram).norm() <= 1e-6 * double.gram.norm()
    assert (single.sum - double.sum).norm() <= 1e-6 * double.sum.norm()


@pytest.mark.parametrize("mean", [0, 10, 1000])
def test_a_large_mean_does_not_drown_the_covariance(mean):
    X = torch.randn(6000, 16) + mean
    single, double = (Moments.of(rows).second(centred=True) for rows in (X, X.double()))
    assert (single - double).norm() <= 1e-5 * double.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype):
    X = torch.full((100, 2), 300.0, dtype=dtype)  # 300² is above the largest float16
    assert Moments.of(X).gram[0, 1] == pytest.approx(100 * 300**2)


def test_gram_matrices_are_symmetric_bit_for_bit():
    for dtype in (torch.float32, torch.float64):
        gram = Moments.of(torch.randn(999, 33, dtype=dtype)).gram
        assert torch.equal(gram, gram.mT)


def test_moments_of_nothing_have_a_mean():
    nothing = Moments.zero(3)
    assert torch.equal(nothing.mean, torch.zeros(3, dtype=torch.float64))
    assert torch.equal(nothing.second(centred=True), torch.zeros(3, 3, dtype=torch.float64))

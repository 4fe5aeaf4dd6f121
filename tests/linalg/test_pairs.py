"""Sums of pairs are a monoid, and single precision loses nothing that a large mean could hide."""

from __future__ import annotations

import pytest
import torch

from slimformer.linalg.pairs import Pairs


def same(a: Pairs, b: Pairs) -> bool:
    equal = [torch.equal(a.x.gram, b.x.gram), torch.equal(a.sum, b.sum), torch.equal(a.cross, b.cross)]
    return all(equal) and (a.count, a.square) == (b.count, b.square)


def whole_numbers(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs whose sums are exact in float64."""
    return torch.randint(-99, 99, (rows, 5)).double(), torch.randint(-99, 99, (rows, 3)).double()


def test_nothing_is_the_neutral_element():
    pairs = Pairs.of(*whole_numbers(9))
    assert same(pairs + Pairs.zero(5, 3), pairs)
    assert same(Pairs.of(*whole_numbers(0)), Pairs.zero(5, 3))


@pytest.mark.parametrize("size", [1, 7, 40])
def test_pairs_do_not_depend_on_batching(size):
    X, Y = torch.randn(40, 5).double(), torch.randn(40, 3).double() + 2
    parts = sum((Pairs.of(x, y) for x, y in zip(X.split(size), Y.split(size), strict=True)), Pairs.zero(5, 3))
    whole = Pairs.of(X, Y)
    torch.testing.assert_close(parts.cross, whole.cross, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.cross, X.mT @ Y, rtol=1e-12, atol=1e-12)
    assert parts.square == pytest.approx(float(Y.square().sum()), rel=1e-12)


def test_moments_about_any_two_points_are_those_of_the_shifted_rows():
    X, Y = torch.randn(30, 5).double(), torch.randn(30, 3).double()
    μ, ν = torch.randn(5).double(), torch.randn(3).double()
    C, B, square = Pairs.of(X, Y).about(μ, ν)
    torch.testing.assert_close(C, (X - μ).mT @ (X - μ) / 30)
    torch.testing.assert_close(B, (X - μ).mT @ (Y - ν) / 30)
    assert square == pytest.approx(float((Y - ν).square().sum()) / 30)


def test_a_large_mean_does_not_drown_the_covariance_in_single_precision():
    X, Y = torch.randn(500, 5).double(), torch.randn(500, 3).double()
    pairs = Pairs.of((X + 1000).float(), (Y - 3000).float())
    _, B, _ = pairs.about(pairs.x.mean, pairs.mean)
    exact = (X - X.mean(0)).mT @ (Y - Y.mean(0)) / 500
    assert float((B - exact).abs().max()) < 1e-3

"""The best affine map and the best map of every rank, judged by least squares on the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slimformer.decompose.linear_map import error_of, errors_at_every_rank, linear_map, r_squared, reduced_rank
from slimformer.errors import RankTooHigh
from slimformer.linalg.pairs import Pairs

NONE = 1e-12


def rows(n: int = 200, d: int = 7, m: int = 5, noise: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated x with a mean, y partly linear in it."""
    X = torch.randn(n, d).double() @ torch.randn(d, d).double() + 2
    return X, X @ torch.randn(d, m).double() + torch.tanh(X @ torch.randn(d, m).double()) + noise * torch.randn(n, m)


def squares(Y: torch.Tensor, Z: torch.Tensor) -> float:
    return float((Y - Z).square().sum() / len(Y))


def test_the_map_is_that_of_least_squares():
    X, Y = rows()
    found = linear_map(Pairs.of(X, Y), ridge=NONE)
    best = np.linalg.lstsq(np.c_[X.numpy(), np.ones(len(X))], Y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(found.A.numpy(), best[:-1].T, atol=1e-7)
    np.testing.assert_allclose(found.b.numpy(), best[-1], atol=1e-7)


def test_without_a_bias_it_goes_through_zero():
    X, Y = rows()
    found = linear_map(Pairs.of(X, Y), ridge=NONE, bias=False)
    np.testing.assert_allclose(found.A.numpy(), np.linalg.lstsq(X.numpy(), Y.numpy(), rcond=None)[0].T, atol=1e-7)
    assert not found.b.any()


def test_standardised_coordinates_may_come_in_any_unit():
    X, Y = rows()
    units = torch.logspace(-3, 3, 7).double()
    one, other = (linear_map(Pairs.of(Z, Y), ridge=0.1, standardise=True) for Z in (X, X * units))
    torch.testing.assert_close(one.A, other.A * units)
    apart = [linear_map(Pairs.of(X, Y), ridge=NONE, standardise=s).A for s in (True, False)]
    torch.testing.assert_close(*apart, atol=1e-7, rtol=0)
    still = linear_map(Pairs.of(torch.cat([X, torch.ones(200, 1)], 1), Y), ridge=NONE, standardise=True)
    torch.testing.assert_close(still.A[:, :7], apart[0], atol=1e-7, rtol=0)
    assert not still.A[:, 7].any()


def test_what_is_linear_is_replaced_exactly():
    X, A, b = torch.randn(90, 7).double(), torch.randn(5, 7).double(), torch.randn(5).double()
    pairs = Pairs.of(X, X @ A.mT + b)
    found = linear_map(pairs, ridge=NONE)
    torch.testing.assert_close((found.A, found.b), (A, b), atol=1e-9, rtol=0)
    assert r_squared(pairs, found) == pytest.approx(1, abs=1e-12)


def test_errors_from_sums_are_those_of_the_rows():
    X, Y = rows()
    found = linear_map(Pairs.of(X, Y), ridge=0.1)
    other, there = rows(80)
    predicted = other @ found.A.mT + found.b
    assert error_of(Pairs.of(other, there), found) == pytest.approx(squares(there, predicted), rel=1e-9)
    whole = squares(there, there.mean(0))
    assert r_squared(Pairs.of(other, there), found) == pytest.approx(1 - squares(there, predicted) / whole, rel=1e-9)


@pytest.mark.parametrize("ridge", [NONE, 0.3])
def test_the_price_of_a_rank_is_the_energy_it_discards(ridge):
    X, Y = rows()
    pairs = Pairs.of(X, Y)
    maps = reduced_rank(pairs, ridge=ridge)
    λ = ridge * float(torch.cov(X.mT, correction=0).diagonal().mean())
    for r in range(6):
        found = maps.at(r)
        penalised = squares(Y, X @ found.A.mT + found.b) + λ * float(found.A.square().sum())
        assert penalised == pytest.approx(maps.floor + float(maps.energies[r:].sum()), rel=1e-8)
        assert int(torch.linalg.matrix_rank(found.A)) == r


def test_no_other_map_of_the_rank_does_better():
    X, Y = rows()
    maps = reduced_rank(Pairs.of(X, Y), ridge=NONE)
    best = squares(Y, X @ maps.at(2).A.mT + maps.at(2).b)
    U, V, _ = maps.factors(2)
    for _ in range(20):
        A = (U + 0.1 * torch.randn_like(U)) @ (V + 0.1 * torch.randn_like(V))
        assert squares(Y - Y.mean(0), (X - X.mean(0)) @ A.mT) > best


def test_full_rank_is_the_map_itself():
    pairs = Pairs.of(*rows())
    torch.testing.assert_close(reduced_rank(pairs).at(5).A, linear_map(pairs).A)


def test_errors_at_every_rank_are_those_of_the_maps_on_other_data():
    maps = reduced_rank(Pairs.of(*rows()), ridge=0.01)
    other = Pairs.of(*rows(60))
    every = errors_at_every_rank(other, maps)
    assert every.tolist() == pytest.approx([error_of(other, maps.at(r)) for r in range(6)], rel=1e-8)


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(RankTooHigh, match="rank 5 at most"):
        reduced_rank(Pairs.of(*rows())).at(6)

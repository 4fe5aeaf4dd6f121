"""Spectra: what the numbers promise about approximations, and what they are for matrices everyone knows."""

from __future__ import annotations

import pytest
import torch

from slimformer.linalg.spectra import (
    effective_rank,
    energies,
    gram_values,
    product_values,
    rank_at,
    singular_values,
    stable_rank,
)


@pytest.mark.parametrize("shape", [(7, 12), (12, 7), (3, 5, 9)])
def test_values_are_those_of_an_svd(shape):
    W = torch.randn(shape, dtype=torch.float64)
    assert torch.allclose(singular_values(W), torch.linalg.svdvals(W), rtol=1e-9)


def test_values_of_a_product_need_no_product():
    A, B = torch.randn(2, 4, 5, 20, dtype=torch.float64)
    assert torch.allclose(product_values(A, B), torch.linalg.svdvals(A.mT @ B)[:, :5], rtol=1e-9)
    assert product_values(A[:, :0], B[:, :0]).shape == (4, 0)


def test_energy_is_what_the_best_approximation_keeps():
    W = torch.randn(10, 15, dtype=torch.float64)
    U, σ, Vh = torch.linalg.svd(W, full_matrices=False)
    kept = energies(singular_values(W))
    for k in (1, 4, 9):
        left = (W - (U[:, :k] * σ[:k]) @ Vh[:k]).square().sum() / W.square().sum()
        assert kept[k - 1] == pytest.approx(1 - float(left), rel=1e-9)


def test_the_rank_of_a_share_is_the_least_that_reaches_it():
    σ = torch.tensor([3.0, 2.0, 1.0, 0.0])
    assert [float(rank_at(σ, share)) for share in (0.5, 9 / 14, 0.65, 13 / 14, 0.95, 1.0)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("power", [1, 2])
def test_effective_rank_of_flat_and_single_spectra(power):
    flat, single = torch.ones(9), torch.eye(9)[0]
    assert float(effective_rank(flat, power=power)) == pytest.approx(9)
    assert float(effective_rank(single, power=power)) == pytest.approx(1)


def test_ranks_do_not_depend_on_scale_and_stand_in_order():
    σ = torch.rand(20, dtype=torch.float64).sort(descending=True).values
    for measure in (effective_rank, stable_rank, lambda s: rank_at(s, 0.9)):
        assert float(measure(7 * σ)) == pytest.approx(float(measure(σ)))
    assert 1 <= float(stable_rank(σ)) <= float(effective_rank(σ)) <= float(effective_rank(σ, power=1)) <= 20


def test_nothing_has_no_spectrum_and_no_nan():
    zero = torch.zeros(6)
    assert float(energies(zero)[0]) == float(stable_rank(zero)) == float(rank_at(zero, 0.9)) == 1
    assert gram_values(torch.zeros(3, 3)).tolist() == [0, 0, 0]

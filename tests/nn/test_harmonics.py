"""Harmonics are harmonic, orthonormal, as many as there should be, and add up to one polynomial of the angle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import eval_gegenbauer, eval_legendre, roots_gegenbauer
from torch import Tensor
from torch.nn.functional import normalize

from slimformer.nn.stand_ins import harmonic_count, harmonics, legendre


def points(n: int, q: int) -> Tensor:
    return normalize(torch.randn(n, q).double(), dim=1)


def quadrature(q: int, degree: int) -> tuple[Tensor, Tensor]:
    """Points and weights that integrate polynomials of degree 2·`degree` over the sphere exactly."""
    if q == 2:
        angles = torch.arange(2 * degree + 2).double() * (2 * torch.pi / (2 * degree + 2))
        return torch.stack([angles.cos(), angles.sin()], 1), torch.ones_like(angles) / len(angles)
    t, w = (torch.from_numpy(part) for part in roots_gegenbauer(degree + 1, (q - 2) / 2))
    inner, v = quadrature(q - 1, degree)
    X = torch.cat([torch.cat([t_i.expand(len(inner), 1), (1 - t_i**2).sqrt() * inner], 1) for t_i in t])
    return X, torch.outer(w / w.sum(), v).flatten()


@pytest.mark.parametrize(("q", "degree"), [(2, 7), (3, 6), (4, 4), (5, 3)])
def test_harmonics_are_orthonormal_by_exact_integration(q, degree):
    X, w = quadrature(q, degree)
    Y = harmonics(X, degree)
    assert Y.shape[1] == sum(harmonic_count(q, k) for k in range(degree + 1))
    torch.testing.assert_close(Y.mT @ (w[:, None] * Y), torch.eye(Y.shape[1]).double(), atol=1e-11, rtol=0)


def test_in_eight_dimensions_they_are_orthonormal_as_far_as_chance_can_tell():
    Y = harmonics(points(50_000, 8), 2)
    assert float((Y.mT @ Y / len(Y) - torch.eye(Y.shape[1])).abs().max()) < 0.06


@pytest.mark.parametrize("q", [2, 3, 5, 8])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_those_of_one_degree_add_up_to_a_polynomial_of_the_angle(q, k):
    X, Z = points(20, q), points(20, q)
    before = sum(harmonic_count(q, j) for j in range(k))
    Y, Y_z = (harmonics(P, k)[:, before:] for P in (X, Z))
    added, zonal = (Y * Y_z).sum(1), harmonic_count(q, k) * legendre((X * Z).sum(1), q, k)
    torch.testing.assert_close(added, zonal, atol=1e-9 * harmonic_count(q, k), rtol=0)


@pytest.mark.parametrize("q", [2, 3, 6])
def test_their_laplacian_is_zero(q):
    H = torch.func.hessian(lambda x: harmonics(x[None], 3)[0])(torch.randn(q).double())
    assert float(H.diagonal(dim1=1, dim2=2).sum(1).abs().max()) < 1e-9
    assert float(H.abs().max()) > 1  # there is something to cancel


def test_poles_are_points_like_all_others():
    pole = torch.eye(5).double()
    assert bool(harmonics(torch.cat([pole, -pole]), 6).isfinite().all())
    torch.testing.assert_close(
        harmonics(pole, 6).square().sum(1), torch.full((5,), sum(harmonic_count(5, k) for k in range(7))).double()
    )


def test_a_harmonic_grows_with_the_power_of_its_degree():
    X, before = torch.randn(4, 5).double(), sum(harmonic_count(5, k) for k in range(3))
    torch.testing.assert_close(harmonics(2 * X, 3)[:, before:], 8 * harmonics(X, 3)[:, before:])


def test_zonal_polynomials_are_those_of_the_textbooks():
    t = np.linspace(-1, 1, 21)
    for k in range(6):
        np.testing.assert_allclose(legendre(torch.from_numpy(t), 3, k).numpy(), eval_legendre(k, t), atol=1e-12)
        gegenbauer = eval_gegenbauer(k, 3.0, t) / eval_gegenbauer(k, 3.0, 1.0)
        np.testing.assert_allclose(legendre(torch.from_numpy(t), 8, k).numpy(), gegenbauer, atol=1e-12)


def test_the_numbers_of_harmonics():
    assert [harmonic_count(3, k) for k in range(5)] == [1, 3, 5, 7, 9]
    assert [harmonic_count(2, k) for k in range(4)] == [1, 2, 2, 2]
    assert harmonic_count(384, 2) == 73_919
    assert harmonic_count(768, 2) == 295_295

"""Features of the sphere: norms are undone, kernels are met, batches do not matter, polynomials are fitted exactly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from slimformer.decompose.linear_map import linear_map, r_squared
from slimformer.errors import TooManyHarmonics
from slimformer.linalg.moments import Moments
from slimformer.linalg.pairs import Pairs
from slimformer.nn.features import (
    Features,
    arc_cosine_features,
    fourier_features,
    gegenbauer_features,
    harmonic_features,
)
from slimformer.nn.stand_ins import legendre, on_sphere

D = 12
ONE, ZERO = torch.ones(D).double(), torch.zeros(D).double()


def points(n: int, d: int = D) -> Tensor:
    return normalize(torch.randn(n, d).double(), dim=1)


def every() -> list[Features]:
    gain, shift = torch.rand(D).double() + 0.5, torch.randn(D).double()
    seen = Moments.of(points(100))
    made = [kind(20, gain, shift) for kind in (fourier_features, arc_cosine_features, gegenbauer_features)]
    return [*made, harmonic_features(seen, gain, shift, directions=4, degree=3)]


def test_gain_and_bias_of_a_norm_are_undone():
    norm = nn.LayerNorm(D).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    X = torch.randn(9, D).double()
    S = on_sphere(norm(X).detach(), norm.weight.detach(), norm.bias.detach())
    torch.testing.assert_close(S, normalize(X - X.mean(1, keepdim=True), dim=1))
    torch.testing.assert_close(S.sum(1), torch.zeros(9).double(), atol=1e-9, rtol=0)


def test_what_a_norm_has_switched_off_is_left_out():
    gain = ONE.clone()
    gain[3] = 1e-9
    S = on_sphere(torch.randn(5, D).double(), gain, ZERO)
    assert not S[:, 3].any()
    torch.testing.assert_close(S.norm(dim=1), torch.ones(5).double())


@pytest.mark.parametrize("features", every(), ids=lambda f: f.kind)
def test_the_fit_does_not_depend_on_batches(features):
    X, Y = torch.randn(90, D).double(), torch.randn(90, 3).double()
    zero = Pairs.zero(features.count, 3)
    parts = sum((Pairs.of(features(x), y) for x, y in zip(X.split(13), Y.split(13), strict=True)), zero)
    whole = Pairs.of(features(X), Y)
    torch.testing.assert_close(linear_map(parts, ridge=1e-3).A, linear_map(whole, ridge=1e-3).A, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("features", every(), ids=lambda f: f.kind)
def test_features_are_as_many_as_they_say_and_know_only_the_sphere(features):
    X = torch.randn(7, D).double()
    further = 3 * (X - features.shift) + features.shift  # the same point of the sphere
    assert features(X).shape == (7, features.count)
    torch.testing.assert_close(features(X), features(further))


def test_fourier_features_meet_the_gaussian_kernel():
    S = points(6)
    Φ = fourier_features(100_000, ONE, ZERO, length=0.7)(S)
    torch.testing.assert_close(Φ @ Φ.mT, torch.exp(-torch.cdist(S, S).square() / (2 * 0.49)), atol=0.02, rtol=0)


@pytest.mark.parametrize("degree", [0, 1])
def test_arc_cosine_features_meet_their_kernels(degree):
    S = points(6)
    Φ = arc_cosine_features(100_000, ONE, ZERO, degree=degree)(S)
    θ = (S @ S.mT).clamp(-1, 1).acos()
    exact = 1 - θ / math.pi if degree == 0 else (θ.sin() + (math.pi - θ) * θ.cos()) / math.pi
    torch.testing.assert_close(Φ @ Φ.mT, exact, atol=0.02, rtol=0)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_gegenbauer_features_meet_the_zonal_kernel(degree):
    S = points(6)
    Φ = gegenbauer_features(100_000, ONE, ZERO, degree=degree)(S)
    torch.testing.assert_close(Φ @ Φ.mT, legendre(S @ S.mT, D, degree), atol=0.03, rtol=0)


def test_a_polynomial_of_the_degree_is_fitted_exactly():
    """x xᵀ has as many free entries as there are harmonics of degree 0 and 2; enough zonal ones span them all."""
    S = points(600)
    y = (S @ torch.randn(D, D).double() * S).sum(1, keepdim=True)
    features = gegenbauer_features(80, ONE, ZERO, degree=2)
    pairs = Pairs.of(features(S), y)
    assert r_squared(pairs, linear_map(pairs, ridge=1e-12)) == pytest.approx(1, abs=1e-6)


def test_harmonics_on_principal_directions_fit_what_happens_there():
    spread = torch.cat([torch.ones(3), 0.01 * torch.ones(D - 3)]).double()
    S = normalize(torch.randn(800, D).double() * spread, dim=1)
    y = (S[:, :1] * S[:, 1:2] - S[:, 2:3] ** 2) / S[:, :3].norm(dim=1, keepdim=True)
    features = harmonic_features(Moments.of(torch.cat([S, -S])), ONE, ZERO, directions=3, degree=2)
    pairs = Pairs.of(torch.cat([features(S), S[:, :3].norm(dim=1, keepdim=True)], 1), y)
    assert r_squared(pairs, linear_map(pairs, ridge=1e-12)) > 0.99


def test_explicit_harmonics_in_the_full_dimension_are_refused_with_their_number():
    seen = Moments.of(torch.randn(500, 384))
    one = torch.ones(384)
    with pytest.raises(TooManyHarmonics, match="73,919 of degree 2 alone"):
        harmonic_features(seen, one, 0 * one, directions=384, degree=2)

"""A v ≈ λu: three ways to the same λ, exact recovery without noise, and the most cosine of all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from slimformer.decompose.scale_free import Directions, aligned, gauged_scales, mean_cosine, top_scales

NONE = 1e-13


def problem(
    noise: float = 0.0, *, signs: bool = False, n: int = 150, d: int = 6, p: int = 5
) -> tuple[Directions, Tensor]:
    """Directions of A v with noise, v of very different spread; and the A they come from."""
    V = torch.randn(n, d).double() * torch.logspace(0, -1.5, d).double()
    A = torch.randn(p, d).double() / torch.logspace(0, -1.5, d).double()
    Y = V @ A.mT + noise * torch.randn(n, p).double()
    flip = torch.randint(0, 2, (n, 1)) * 2 - 1 if signs else torch.ones(n, 1)
    return Directions.of(V, Y * torch.rand(n, 1).mul(3).add(0.1).double() * flip, ridge=NONE), A


def dense_form(data: Directions) -> Tensor:
    """H∘G, n × n."""
    return (data.V @ torch.linalg.pinv(data.V)) * (data.U @ data.U.mT)


def angle(A: Tensor, B: Tensor) -> float:
    """Between two maps up to a factor, sign included."""
    return 1 - abs(float((A * B).sum() / (A.norm() * B.norm())))


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_power_iteration_finds_the_eigenvector(noise):
    data, _ = problem(noise)
    value, vectors = torch.linalg.eigh(dense_form(data))
    found = top_scales(data, rtol=1e-15, sweeps=5000)
    assert found.fit == pytest.approx(float(value[-1]), abs=1e-9)
    top = vectors[:, -1] * len(vectors) ** 0.5
    torch.testing.assert_close(found.λ, top * torch.sign(top.sum()), atol=1e-4, rtol=0)


def test_a_product_needs_no_n_by_n_matrix():
    data, _ = problem(0.3)
    λ = torch.randn(150).double()
    torch.testing.assert_close(data.product(λ), dense_form(data) @ λ)


def test_alternating_least_squares_is_power_iteration():
    data, _ = problem(0.3)
    form, λ = dense_form(data), torch.rand(150).double()
    power = λ
    for _ in range(7):
        A = torch.linalg.lstsq(data.V, λ[:, None] * data.U).solution.mT  # λ gives A
        λ = (data.V @ A.mT * data.U).sum(1)  # A gives λ: the foot of A v on the line of u
        λ = λ * (150**0.5 / λ.norm())
        power = form @ power
        power = power * (150**0.5 / power.norm())
        torch.testing.assert_close(λ, power)


def test_it_does_not_matter_where_the_iteration_starts():
    data, _ = problem(0.3)
    first, second = (top_scales(data, start=torch.randn(150).double(), rtol=1e-15, sweeps=5000) for _ in range(2))
    torch.testing.assert_close(first.λ, second.λ, atol=1e-4, rtol=0)


@pytest.mark.parametrize("signs", [False, True])
def test_without_noise_the_map_is_found_at_any_scales(signs):
    data, A = problem(signs=signs)
    found = top_scales(data, rtol=1e-16, sweeps=20000)
    assert found.fit == pytest.approx(1, abs=1e-8)
    assert angle(found.A, A) < 1e-6
    λ = (data.V @ A.mT * data.U).sum(1)
    assert angle(found.λ, λ) < 1e-6  # signs too


def test_the_greatest_mean_cosine_without_noise_is_one():
    data, A = problem()
    found = aligned(data, data.map_of(torch.ones(150).double()), turns=200)
    assert found.cosines[-1] == pytest.approx(1, abs=1e-4)
    assert angle(found.A, A) < 1e-2


def test_least_squares_on_unit_targets_is_biased_even_without_noise():
    data, A = problem()
    assert angle(data.map_of(torch.ones(150).double()), A) > 1e-3


def test_the_linear_solve_solves_and_finds_the_map_too():
    data, A = problem(0.02)
    found = gauged_scales(data, ε=1e-2)
    left = torch.linalg.solve((1.01) * torch.eye(150).double() - dense_form(data), torch.ones(150).double())
    torch.testing.assert_close(found.λ, left / left.mean(), atol=1e-5, rtol=0)
    assert angle(found.A, A) < angle(data.map_of(torch.ones(150).double()), A)


@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_no_map_near_it_has_a_greater_mean_cosine(noise):
    data, _ = problem(noise)
    found = aligned(data, top_scales(data).A, turns=200, rtol=0.0)
    assert list(found.cosines) == sorted(found.cosines)
    assert found.cosines[-1] == pytest.approx(mean_cosine(data, found.A), rel=1e-9)
    A = found.A.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad((normalize(data.V @ A.mT, dim=1) * data.U).sum(1).mean(), A)
    spread = data.V.square().mean(0).sqrt()
    assert float((slope / spread).abs().max()) < 1e-3  # in the units of v
    for _ in range(10):
        assert mean_cosine(data, found.A * (1 + 0.05 * torch.randn_like(found.A))) < found.cosines[-1]


def test_the_mean_cosine_is_never_below_that_of_the_start():
    data, _ = problem(2.0)
    start = torch.randn(5, 6).double()
    assert mean_cosine(data, aligned(data, start).A) >= mean_cosine(data, start)

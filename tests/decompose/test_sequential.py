"""Sequential correction: a ridge regression with two targets and a pull to what was there."""

import pytest
import torch

from slimformer.decompose.sequential import held_error, sequential_change, solve
from slimformer.linalg.moments import Moments
from slimformer.linalg.residuals import Residuals, ResidualSums

K, M = 7, 5


def rows(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    X = (
        torch.randn(n, K, generator=draw, dtype=torch.float64) @ torch.randn(K, K, generator=draw, dtype=torch.float64)
        + 1
    )
    W0, W1 = torch.randn(2, M, K, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    noise = torch.randn(2, n, M, generator=draw, dtype=torch.float64)
    return X, X @ W0.T + 0.3 + noise[0], X @ W1.T - 0.2 + noise[1]


def seen(n: int, seed: int = 0) -> Residuals:
    return of(*rows(n, seed))


def of(X, R0, R1) -> Residuals:
    return ResidualSums().add(X, R0, R1).residuals()


def kept(n: int = 400, seed: int = 5) -> Moments:
    return Moments.of(rows(n, seed)[0])


@pytest.mark.parametrize("size", [1, 9, 50])
def test_residuals_do_not_depend_on_batching(size):
    X, R0, R1 = rows(50)
    whole, sums = of(X, R0, R1), ResidualSums()
    for part in zip(X.split(size), R0.split(size), R1.split(size), strict=True):
        sums.add(*part)
    total = sums.residuals()
    assert total.count == whole.count
    torch.testing.assert_close(total.cross, whole.cross)
    torch.testing.assert_close(total.x.gram, whole.x.gram)
    assert total.square == pytest.approx(whole.square)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ρ", [0.1, 2.0])
def test_the_solution_is_that_of_the_stacked_regression(ρ, bias):
    X, R0, R1 = rows(300)
    Z = rows(200, seed=3)[0]
    for target, (δW, δb) in zip((R0, R1), solve(of(X, R0, R1), Moments.of(Z), ρ, bias=bias, ridge=1e-12), strict=True):
        one = torch.ones(1, dtype=torch.float64)
        A = torch.cat([X, one.expand(len(X), 1)], 1) / len(X) ** 0.5
        B = torch.cat([Z, one.expand(len(Z), 1)], 1) * (ρ / len(Z)) ** 0.5
        stacked = torch.cat([A, B])
        goal = torch.cat([target / len(X) ** 0.5, torch.zeros(len(Z), M, dtype=torch.float64)])
        columns = slice(None) if bias else slice(0, K)
        expected = torch.linalg.lstsq(stacked[:, columns], goal).solution.T
        torch.testing.assert_close(δW, expected[:, :K], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(
            δb, expected[:, K] if bias else torch.zeros(M, dtype=torch.float64), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("bias", [True, False])
def test_a_strong_pull_leaves_the_nested_solution(bias):
    sizes = []
    for ρ in (1.0, 1e3, 1e9):
        (δW, δb), _ = solve(seen(300), kept(), ρ, bias=bias, ridge=1e-3)
        sizes.append(float(δW.norm() + δb.norm()))
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 1e-6 * sizes[0]


def test_the_held_out_error_is_the_true_one():
    X, _, R1 = rows(80, seed=2)
    δW, δb = torch.randn(M, K, dtype=torch.float64), torch.randn(M, dtype=torch.float64)
    true = (R1 - X @ δW.T - δb).square().sum(1).mean()
    assert held_error(seen(80, seed=2), δW, δb) == pytest.approx(float(true))


@pytest.mark.parametrize("bias", [True, False])
def test_the_choice_is_the_best_of_a_fine_grid_and_never_loses(bias):
    fit, held = seen(60), seen(500, seed=1)
    found = sequential_change(fit, kept(), held, bias=bias, ridge=1e-3)
    assert found.after == pytest.approx(held_error(held, found.δW, found.δb))
    assert found.after <= found.before
    for ρ in (0.01, 1.0, 100.0):
        (W0, b0), (W1, b1) = solve(fit, kept(), ρ, bias=bias, ridge=1e-3)
        for β in torch.linspace(0, 1, 21).tolist():
            error = held_error(held, W0 + β * (W1 - W0), b0 + β * (b1 - b0))
            assert found.after <= error + 1e-9


def test_what_cannot_be_learnt_is_left_alone():
    X, R0, R1 = rows(12, seed=4)
    other = of(rows(300, seed=6)[0], *(torch.randn(2, 300, M, dtype=torch.float64)))
    found = sequential_change(of(X, R0, R1), kept(), other, bias=True, ridge=1e-3, rhos=(1e-3,))
    assert found.after <= found.before
    if found.after == found.before:
        assert found.ρ == torch.inf
        assert not found.δW.any()

"""Laws of rounding and sparsity: what may be stored is stored, and nothing is lost that others could make up for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slimformer.decompose.compensation import compensate, damped_root, gram_error, inverse_root
from slimformer.decompose.rounding import Grid, Rounded, round_compensated, round_nearest
from slimformer.decompose.sparse import Pattern, make_sparse
from slimformer.linalg.damped import damped

SEEDS = range(8)
grids = pytest.mark.parametrize("grid", [Grid(4), Grid(8), Grid(4, 16), Grid(4, 16, symmetric=False)], ids=str)


def problem(seed: int, o: int = 12, d: int = 48) -> tuple[Tensor, Tensor]:
    """A weight, and the Gram matrix of inputs that are far from white."""
    draw = torch.Generator().manual_seed(seed)
    X = torch.randn(4 * d, d, generator=draw, dtype=torch.float64)
    X = X @ torch.randn(d, d, generator=draw, dtype=torch.float64) * torch.logspace(0, -2, d, dtype=torch.float64)
    return torch.randn(o, d, generator=draw, dtype=torch.float64), X.mT @ X / len(X)


def same(one: Rounded, other: Rounded) -> bool:
    return bool((one.Q == other.Q).all() and (one.s == other.s).all() and (one.z == other.z).all())


@grids
@pytest.mark.parametrize("by_energy", [False, True])
def test_white_inputs_have_nothing_to_make_up_for(grid, by_energy):
    W, _ = problem(0)
    eye = torch.eye(W.shape[1], dtype=torch.float64)
    assert same(round_compensated(W, eye, grid, by_energy=by_energy), round_nearest(W, grid))


@grids
@pytest.mark.parametrize("by_energy", [False, True])
def test_compensation_never_loses_to_the_nearest(grid, by_energy):
    for seed in SEEDS:
        W, C = problem(seed)
        H = damped(C, 0.01)
        found = gram_error(W, round_compensated(W, C, grid, by_energy=by_energy).W, H)
        assert found < gram_error(W, round_nearest(W, grid).W, H)


@pytest.mark.parametrize("method", ["nearest", "compensated"])
def test_more_bits_are_never_worse(method):
    for seed in SEEDS:
        W, C = problem(seed)
        grids = [Grid(bits, 16) for bits in range(2, 9)]
        made = [round_nearest(W, grid) if method == "nearest" else round_compensated(W, C, grid) for grid in grids]
        errors = [gram_error(W, each.W, C) for each in made]
        assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("symmetric", [True, False])
def test_one_group_that_is_the_row_is_no_group(symmetric):
    W, C = problem(1)
    whole, none = Grid(4, W.shape[1], symmetric), Grid(4, None, symmetric)
    assert torch.equal(round_nearest(W, whole).W, round_nearest(W, none).W)
    assert torch.equal(round_compensated(W, C, whole).W, round_compensated(W, C, none).W)


@grids
@pytest.mark.parametrize("by_energy", [False, True])
def test_what_is_on_the_grid_stays(grid, by_energy):
    W, C = problem(2)
    g = grid.width(W.shape[1])
    Q = torch.randint(grid.low + 1, grid.high + 1, W.shape, generator=torch.Generator().manual_seed(0))
    Q[:, ::g] = grid.high  # every group uses all of its grid, so the same one is laid again
    if not grid.symmetric:
        Q[:, 1::g] = grid.low
    step = 2.0 ** torch.arange(-6, -6 + len(W))[:, None]
    stored = Q.double() * step
    assert torch.equal(round_nearest(stored, grid).W.double(), stored)
    assert torch.equal(round_compensated(stored, C, grid, by_energy=by_energy).W.double(), stored)


@grids
def test_no_weight_moves_by_more_than_half_a_step(grid):
    W, _ = problem(3)
    rounded = round_nearest(W, grid)
    step = rounded.s.double().repeat_interleave(grid.width(W.shape[1]), 1)
    assert bool(((rounded.W - W).abs() <= step * (0.5 if grid.symmetric else 1.0) + 1e-12).all())


def test_rounding_twice_is_rounding_once():
    W, _ = problem(4)
    once = round_nearest(W, Grid(4, 16))
    assert same(round_nearest(once.W, Grid(4, 16)), once)


def test_a_row_of_zeros_stays_zero_on_every_grid():
    for grid in (Grid(4), Grid(8, 16), Grid(4, 16, symmetric=False)):
        _, C = problem(5)
        W = torch.zeros(3, len(C), dtype=torch.float64)
        assert not round_nearest(W, grid).W.any() and not round_compensated(W, C, grid).W.any()


def test_a_group_divides_the_row_it_is_asked_for():
    assert Grid(4, 32).width(288) == 32
    assert Grid(4, 64).width(288) == 48
    assert Grid(4, 32).width(506) == 23
    assert Grid(4, 32).width(509) == 509  # a prime: one step for the row
    assert Grid(4, 128).width(64) == 64


def test_the_root_is_triangular_and_of_the_inverse():
    _, C = problem(6)
    H = damped(C, 0.01)
    U = inverse_root(H)
    assert torch.equal(U, U.triu())
    assert torch.allclose(U.mT @ U @ H, torch.eye(len(H), dtype=H.dtype), atol=1e-8)


def test_dead_inputs_do_not_stop_it():
    W, C = problem(7)
    C[:, 5] = C[5] = 0
    assert bool(torch.isfinite(round_compensated(W, C, Grid(4, 16)).W).all())
    assert bool(torch.isfinite(make_sparse(W, C, Pattern(0.5, 2, 4))).all())


def test_one_column_settled_costs_what_least_squares_says():
    for seed in SEEDS:
        W, C = problem(seed)
        H = damped(C, 0.01)
        U = inverse_root(H)
        moved, lost = compensate(W, U, lambda j, now: torch.zeros(len(now)).to(now) if j == 0 else now[:, j])
        best = W.clone()  # all but the first column are free: solve for them
        best[:, 1:] += torch.linalg.solve(H[1:, 1:], torch.outer(H[1:, 0], W[:, 0])).mT
        best[:, 0] = 0
        assert torch.allclose(moved, best, atol=1e-8)
        obs = float((W[:, 0].square() / torch.linalg.inv(H)[0, 0]).sum())
        assert gram_error(W, moved, H) == pytest.approx(obs) == pytest.approx(float(lost.sum()))


@pytest.mark.parametrize("block", [1, 7, 16, 48, 128])
def test_losses_of_columns_add_up_whatever_the_block(block):
    W, C = problem(9)
    H = damped(C, 0.01)
    moved, lost = compensate(W, damped_root(C), lambda j, now: now[:, j].round(), block=block)
    assert float(lost.sum()) == pytest.approx(gram_error(W, moved, H))
    again, _ = compensate(W, damped_root(C), lambda j, now: now[:, j].round(), block=1)
    assert torch.equal(moved, again)


def test_two_of_four_are_zero_in_every_group():
    for seed in SEEDS:
        W, C = problem(seed)
        zeros = (make_sparse(W, C, Pattern(0.5, 2, 4)) == 0).view(len(W), -1, 4).sum(-1)
        assert bool((zeros == 2).all())


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_as_many_zeros_as_asked_for(share):
    W, C = problem(10)
    assert float((make_sparse(W, C, Pattern(share)) == 0).double().mean()) == pytest.approx(share, abs=1e-3)


def test_no_zeros_change_nothing():
    W, C = problem(11)
    assert torch.equal(make_sparse(W, C, Pattern(0.0)), W)
    assert torch.equal(make_sparse(W, C, Pattern(0.0, 4, 4)), W)


@pytest.mark.parametrize("pattern", [Pattern(0.5, 2, 4), Pattern(0.5)], ids=["2:4", "half"])
def test_the_others_make_up_for_zeros(pattern):
    for seed in SEEDS:
        W, C = problem(seed)
        H = damped(C, 0.01)
        magnitude = W.masked_fill(pattern.choose(W.square()), 0.0)
        assert gram_error(W, make_sparse(W, C, pattern), H) < gram_error(W, magnitude, H)


def test_white_inputs_make_it_magnitude_pruning():
    W, C = problem(12)
    pattern = Pattern(0.5, 2, 4)
    found = make_sparse(W, torch.eye(len(C), dtype=C.dtype), pattern)
    assert torch.equal(found, W.masked_fill(pattern.choose(W.square()), 0.0))


def column_by_column(W: Tensor, C: Tensor, pattern: Pattern) -> Tensor:
    """The same without blocks: every column tells all later ones at once, and every group is chosen when reached."""
    W, U = W.clone(), damped_root(C)
    for j in range(W.shape[1]):
        if j % pattern.of == 0:
            ahead = slice(j, j + pattern.of)
            gone = pattern.choose((W[:, ahead] / U.diagonal()[ahead]).square())
        kept = W[:, j].masked_fill(gone[:, j % pattern.of], 0.0)
        W[:, j + 1 :] -= torch.outer((W[:, j] - kept) / U[j, j], U[j, j + 1 :])
        W[:, j] = kept
    return W


@pytest.mark.parametrize("d", [258, 300])
@pytest.mark.parametrize("keep", [3, 5])
def test_groups_that_do_not_divide_a_block_are_chosen_from_weights_that_are_up_to_date(d, keep):
    W, C = problem(14, d=d)
    pattern = Pattern(1 - keep / 7, keep, 7)
    found, direct = make_sparse(W, C, pattern), column_by_column(W, C, pattern)
    assert torch.equal(found == 0, direct == 0)
    assert torch.allclose(found, direct, atol=1e-8 * float(direct.abs().max()))


@grids
@pytest.mark.parametrize("by_energy", [False, True])
@pytest.mark.parametrize("pattern", [Pattern(0.5, 2, 4), Pattern(0.6)], ids=["2:4", "0.6"])
def test_zeros_outlive_rounding(grid, by_energy, pattern):
    W, C = problem(13)
    sparse = make_sparse(W, C, pattern)
    found = round_compensated(sparse, C, grid, by_energy=by_energy).W
    assert bool((found[sparse == 0] == 0).all())
    H = damped(C, 0.01)
    assert gram_error(sparse, found, H) < gram_error(sparse, round_nearest(sparse, grid).W, H)

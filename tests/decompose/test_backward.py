"""Elimination of neurons and heads equals trying everything, step by step."""

import pytest
import torch
from widths import RIDGE, lost, make

from slimformer.decompose.elimination import elimination
from slimformer.decompose.reduction import Width, coordinates, may_leave
from slimformer.linalg.moments import Moments


def by_trying(rows):
    width, alive, gone = rows.width, list(range(rows.width.units)), []
    while alive:
        tried = {
            g: lost(rows.X, width.W, coordinates([u for u in alive if u != g], width.unit), bias=width.bias)
            for g in may_leave(alive, width.group)
        }
        gone.append(min(tried, key=tried.get))
        alive.remove(gone[-1])
    return tuple(gone[::-1])


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("unit", "group"), [(1, 1), (3, 1), (2, 2), (2, 4)])
def test_elimination_equals_trying_everything(unit, group, bias):
    for seed in range(3):
        torch.manual_seed(seed)
        rows = make(unit, group, bias=bias)
        assert elimination(rows.width, ridge=RIDGE).order == by_trying(rows)


def test_the_first_to_go_is_the_best_single_choice():
    rows = make(bias=True)
    curve = elimination(rows.width, ridge=RIDGE)
    alone = [lost(rows.X, rows.width.W, torch.tensor([u for u in range(8) if u != g]), bias=True) for g in range(8)]
    assert curve.fit[-2] == pytest.approx(min(alone))


def test_what_only_the_data_tell_apart_is_given_up_first():
    """Two neurons with different activations and the same effect: W reads x₀ + x₁, so x₀ alone cannot stand for both,
    but of a third that is never read nothing is lost. Pivoted QR, which does not see W, would keep it."""
    rows = make(units=3, m=2)
    rows.width.W[:, 2] = 0
    assert elimination(rows.width, ridge=RIDGE).order[-1] == 2


@pytest.mark.parametrize("ridge", [1e-3, 1e-6])
def test_dead_and_quiet_units_go_before_any_that_matter(ridge):
    """The ridge of the refit must not charge a unit that never speaks."""
    X = torch.randn(4000, 64, dtype=torch.float64)
    X[:, :16] *= torch.tensor([0.0] * 8 + [1e-4] * 8, dtype=torch.float64)
    W = 0.05 * torch.randn(20, 64, dtype=torch.float64)
    W[:, :16] = 3 * torch.randn(20, 16, dtype=torch.float64)
    moments = Moments.of(X)
    found = elimination(Width("x", W, moments, moments), ridge=ridge)
    assert set(found.order[-16:]) == set(range(16))

"""Budgets at which a front is expected to reach a given harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from families import tiny, tiny_plan
from slimformer.steps.frontier import FrontPoint, budgets_at

PLAN, _ = tiny_plan(tiny("llama"))


def front(*points: tuple[float, float | None]) -> list[FrontPoint]:
    return [FrontPoint(replace(PLAN, budget=budget, predicted_kl=harm)) for budget, harm in points]


POINTS = front((1.0, 0.0), (0.9, 0.01), (0.8, 0.1), (0.7, 1.0))


def test_harms_of_the_points_give_their_budgets() -> None:
    assert budgets_at(POINTS, [1.0, 0.01, 0.1]) == [0.9, 0.8, 0.7]


def test_between_two_points_the_logarithm_of_the_harm_is_linear() -> None:
    assert budgets_at(POINTS, [0.1**1.5]) == [0.85]


def test_beyond_the_ends_the_ends_count() -> None:
    assert budgets_at(POINTS, [1e-9, 50.0, 60.0]) == [0.9, 0.7]


@pytest.mark.parametrize("harm", [1e-4, 0.03, 0.5, 7.0])
def test_budgets_never_grow_with_the_harm(harm: float) -> None:
    bumpy = front((0.9, 0.02), (0.8, 0.01), (0.7, 0.3))
    more = budgets_at(bumpy, [harm, 2 * harm])
    assert more == sorted(more, reverse=True)
    assert budgets_at(bumpy, [2 * harm])[0] <= budgets_at(bumpy, [harm])[0]


def test_without_probes_the_points_themselves_are_taken() -> None:
    assert budgets_at(front((1.0, None), (0.9, None), (0.5, None)), [0.1]) == [0.9, 0.5]

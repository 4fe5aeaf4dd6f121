"""Laws of key/value heads that go whole."""

import itertools

import pytest
import torch

from slimformer.decompose import METHODS
from slimformer.decompose.groups import group_curves, group_sizes, queries_each
from slimformer.decompose.reduction import Width, select
from slimformer.linalg.moments import Moments

UNITS, GROUP, UNIT, RIDGE = 12, 3, 2, 1e-9


def width(seed=0, tokens=400, bias=False):
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(UNITS * UNIT, UNITS * UNIT, generator=g, dtype=torch.float64)
    fit, held = (torch.randn(n, UNITS * UNIT, generator=g, dtype=torch.float64) @ mix + 1 for n in (tokens, 200))
    W = torch.randn(10, UNITS * UNIT, generator=g, dtype=torch.float64)
    return Width("heads", W, Moments.of(fit), Moments.of(held), UNIT, GROUP, bias)


def refitted(given, units, moments):
    """E ‖W x − W E x_J − W c‖² on these moments."""
    found = select(given, units, len(units), ridge=RIDGE)
    left = torch.eye(len(found.E), dtype=torch.float64)
    left[:, found.J] -= found.E
    d = given.W @ (left @ moments.mean - found.c)
    C = moments.second(centred=True)
    return float(((given.W @ left @ C) * (given.W @ left)).sum() + d @ d)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_the_error_at_every_size_is_that_of_the_refit(name, bias):
    given = width(bias=bias)
    first = METHODS[name](given, ridge=RIDGE)
    found = group_curves(given, first, ridge=RIDGE)
    assert list(found) == [2, 3]
    for queries, curve in found.items():
        assert (curve.sizes, curve.groups) == group_sizes(UNITS, GROUP, queries)
        assert sorted(curve.order) == list(range(UNITS))
        for size, groups, fit, held in zip(curve.sizes, curve.groups, curve.fit, curve.held, strict=True):
            heads = [unit // GROUP for unit in curve.order[:size]]
            assert len(set(heads)) == groups and all(heads.count(head) == queries for head in heads)
            assert set(curve.order[:size]) <= set(first.order[: queries * UNITS // GROUP])
            assert refitted(given, curve.order[:size], given.fit) == pytest.approx(fit, rel=1e-6)
            assert refitted(given, curve.order[:size], given.held) == pytest.approx(held, rel=1e-6)


def test_the_first_to_go_is_the_one_that_costs_least():
    given = width(seed=3)
    curve = group_curves(given, METHODS["elimination"](given, ridge=RIDGE), ridge=RIDGE)[GROUP]
    tries = itertools.combinations(range(UNITS // GROUP), UNITS // GROUP - 1)
    errors = [refitted(given, [GROUP * head + i for head in kept for i in range(GROUP)], given.fit) for kept in tries]
    assert curve.fit[-1] == pytest.approx(min(errors), rel=1e-6)


def test_only_groups_of_several_queries_have_other_sizes():
    assert [list(queries_each(*shape)) for shape in ((8, 1), (8, 8), (8, 2), (9, 3))] == [[], [], [2], [2, 3]]
    assert group_sizes(8, 2, 2) == ((2, 4, 6), (1, 2, 3))


def test_sizes_end_where_tokens_do():
    given = width(tokens=UNIT * 5)
    first = METHODS["elimination"](given, ridge=1e-3)
    assert first.sizes == (0, 1, 2, 3, 4, 12)
    assert {q: curve.sizes for q, curve in group_curves(given, first, ridge=1e-3).items()} == {2: (2, 4), 3: (3,)}

"""What holds for every way to choose what is kept, for neurons, heads and grouped heads."""

import dataclasses

import numpy as np
import pytest
import torch
from widths import RIDGE, lost, make, of

from slimformer.decompose import METHODS, method, select
from slimformer.decompose.reduction import coordinates, eckart_young, legal_sizes
from slimformer.errors import RankTooHigh, UnknownMethod

SHAPES = {"neurons": (1, 1), "heads": (3, 1), "grouped heads": (2, 2), "one group": (2, 8)}


@pytest.fixture(params=[False, True], ids=["no bias", "bias"])
def bias(request):
    return request.param


@pytest.fixture(params=SHAPES)
def rows(request, bias):
    return make(*SHAPES[request.param], bias=bias)


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


def test_curves_are_the_least_squares_errors_at_every_size(name, rows):
    width, curve = rows.width, METHODS[name](rows.width, ridge=RIDGE)
    for size, error in zip(curve.sizes, curve.fit, strict=True):
        kept = coordinates(curve.order[:size], width.unit)
        assert error == pytest.approx(lost(rows.X, width.W, kept, bias=width.bias), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.3])
def test_curves_are_what_the_selected_reader_does_to_the_rows(name, rows, ridge):
    width, curve = rows.width, METHODS[name](rows.width, ridge=ridge)
    for i, size in enumerate(curve.sizes):
        kept = select(width, curve.order, size, ridge=ridge)
        for X, errors in ((rows.X, curve.fit), (rows.Y, curve.held)):
            off = (X - X[:, kept.J] @ kept.E.mT - kept.c) @ width.W.mT
            assert errors[i] == pytest.approx(float(off.square().sum(1).mean()), rel=1e-7, abs=1e-7)


def test_error_never_grows_with_size_and_is_zero_at_full_size(name, rows):
    curve = METHODS[name](rows.width, ridge=RIDGE)
    assert list(curve.fit) == sorted(curve.fit, reverse=True)
    assert curve.fit[-1] == curve.held[-1] == curve.floor[-1] == 0


def test_nothing_kept_leaves_all_there_was(name, rows, bias):
    curve = METHODS[name](rows.width, ridge=RIDGE)
    read = rows.X @ rows.width.W.mT
    expected = (read - read.mean(0) * bias).square().sum(1).mean()
    assert curve.fit[0] == pytest.approx(float(expected))


@pytest.mark.parametrize("ridge", [0.0, 1e-2])
def test_no_selection_beats_eckart_and_young(name, rows, ridge):
    curve = METHODS[name](rows.width, ridge=ridge)
    assert all(held >= floor - 1e-9 * curve.floor[0] for held, floor in zip(curve.held, curve.floor, strict=True))
    same = dataclasses.replace(rows.width, held=rows.width.fit)
    assert METHODS[name](same, ridge=ridge).floor[0] == pytest.approx(curve.fit[0])


@pytest.mark.parametrize("m", [3, 6, 11])
def test_the_floor_is_the_tail_of_the_singular_values(m):
    X, W = torch.randn(50, 6, dtype=torch.float64), torch.randn(m, 6, dtype=torch.float64)
    s = np.linalg.svd((X @ W.mT).numpy(), compute_uv=False) ** 2 / 50
    expected = [s[k:].sum() for k in range(7)]
    assert eckart_young(W, X.mT @ X / 50).tolist() == pytest.approx(expected, abs=1e-9)


def test_order_is_a_permutation_of_the_units(name, rows):
    curve = METHODS[name](rows.width, ridge=RIDGE)
    assert sorted(curve.order) == list(range(rows.width.units))
    assert (curve.sizes[0], curve.sizes[-1]) == (0, rows.width.units)
    assert len(curve.sizes) == len(curve.groups) == len(curve.fit) == len(curve.held) == len(curve.floor)


def test_kept_sets_are_nested_and_leave_every_group_equally_many_queries(name, rows):
    width, curve = rows.width, METHODS[name](rows.width, ridge=RIDGE)
    before: set[int] = set()
    for size, groups in zip(curve.sizes, curve.groups, strict=True):
        J = select(width, curve.order, size, ridge=RIDGE).J.tolist()
        assert before <= set(J)
        before = set(J)
        queries = [u // width.group for u in sorted(curve.order[:size])]
        assert len(set(queries)) == groups
        assert all(queries.count(g) * groups == size for g in queries)


def test_the_dead_go_first(name, rows):
    dead = {1, 2} if rows.width.group == 1 else {rows.width.group - 1}
    X, Y = rows.X.clone(), rows.Y.clone()
    X[:, coordinates(sorted(dead), rows.width.unit)] = 0
    w = of(X, Y, rows.width.W, rows.width.unit, rows.width.group, rows.width.bias).width
    curve = METHODS[name](w, ridge=RIDGE)
    tail = curve.order[-len(dead) :] if w.group == 1 else curve.order[-w.units // w.group :]
    assert dead <= set(tail)


@pytest.mark.parametrize("scale", [1.0, -3.0])
def test_copies_are_removed_for_free(name, bias, scale):
    for unit in (1, 3):
        rows = make(unit, units=5, bias=bias)
        X, Y = (torch.cat([Z, scale * Z[:, : 3 * unit]], dim=1) for Z in (rows.X, rows.Y))
        W = torch.randn(6, 8 * unit, dtype=torch.float64)
        curve = METHODS[name](of(X, Y, W, unit, bias=bias).width, ridge=RIDGE)
        left = dict(zip(curve.sizes, curve.held, strict=True))
        assert left[5] < 1e-8 * left[0] < left[4]


@pytest.mark.parametrize("size", [0, 3, 8])
def test_selection_keeps_what_it_keeps(size, bias):
    width = make(2, bias=bias).width
    kept = select(width, [6, 1, 4, 0, 2, 3, 5, 7], size, ridge=1e-3)
    assert kept.J.tolist() == sorted(kept.J.tolist())
    assert torch.equal(kept.E[kept.J], torch.eye(2 * size, dtype=torch.float64))
    assert torch.equal(kept.c[kept.J], torch.zeros(2 * size, dtype=torch.float64))
    assert bias or not kept.c.any()


def test_full_size_is_the_identity(bias):
    width = make(2, bias=bias).width
    kept = select(width, range(8), 8, ridge=1e-3)
    assert torch.equal(kept.E, torch.eye(16, dtype=torch.float64))
    assert not kept.c.any()


def test_the_choice_does_not_depend_on_the_unit_of_measurement(name, rows):
    w = rows.width
    scaled = of(1e4 * rows.X, 1e4 * rows.Y, w.W / 1e4, w.unit, w.group, w.bias).width
    a, b = METHODS[name](w, ridge=1e-3), METHODS[name](scaled, ridge=1e-3)
    assert a.order == b.order
    assert b.held == pytest.approx(a.held, rel=1e-6)


def test_more_is_not_kept_than_the_rows_span():
    width = make(n=6).width
    with pytest.raises(RankTooHigh, match="asked to keep 7 of 8 coordinates, but 6 calibration tokens"):
        select(width, range(8), 7, ridge=1e-3)


def test_legal_sizes_halve_queries_before_groups():
    assert legal_sizes(9, 3) == ((0, 1, 2, 3, 6, 9), (0, 1, 2, 3, 3, 3))
    assert legal_sizes(4, 1) == ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4))
    assert legal_sizes(4, 4) == ((0, 1, 2, 3, 4), (0, 1, 1, 1, 1))


def test_an_unknown_method_lists_the_known_ones():
    with pytest.raises(UnknownMethod, match="no method 'magic'; choose from elimination, interpolative"):
        method("magic")

"""Ranks of the values: mixing coordinates before they are cut, with the output projection refitted across heads."""

from dataclasses import replace

import pytest
import torch
from attention import Layer, causal, inputs, make
from torch import Tensor
from widths import Rows, of
from widths import make as make_rows

from slimformer.decompose.bilinear import on_heads
from slimformer.decompose.low_rank import by_rank, eliminated, low_rank, on_values, value_curve, value_ranks, whitened
from slimformer.decompose.reduction import Width, eckart_young
from slimformer.linalg.moments import Moments

RIDGE = 1e-12
BASES = {"whitened": whitened, "eliminated": eliminated}
SHAPES = {"heads": (4, 1), "groups": (4, 2), "one group": (3, 3), "one head": (1, 1)}


@pytest.fixture(params=BASES)
def bases(request):
    return BASES[request.param]


@pytest.fixture(params=SHAPES)
def rows(request) -> Rows:
    heads, group = SHAPES[request.param]
    return make_rows(5, group, units=heads, bias=True, m=9, n=200)


def contexts(layer: Layer) -> Rows:
    """What the output projection of a layer reads, on two sets of inputs."""
    X, Y = (layer.contexts(inputs(n=120), causal(120)) for _ in range(2))
    return of(X, Y, layer.W_o, 6, layer.heads // layer.kv, bias=True)


def cut(layer: Layer, width: Width, Q: Tensor, r: int) -> Layer:
    """The layer with values of rank r."""
    kept = value_ranks(width, Q, r, ridge=RIDGE)
    return replace(
        layer, W_v=on_heads(kept.S, layer.W_v), b_v=on_heads(kept.S, layer.b_v),
        W_o=layer.W_o @ kept.E, b_o=layer.b_o + layer.W_o @ kept.c,
    )  # fmt: skip


@pytest.mark.parametrize("rotary", [False, True], ids=["no rotation", "rotary"])
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (3, 1)])
def test_full_rank_changes_nothing(bases, heads, kv, rotary):
    layer, X = make(heads, kv, rotary=rotary), inputs()
    width = contexts(layer).width
    full = cut(layer, width, bases(width, ridge=1e-3), 6)
    torch.testing.assert_close(full(X, causal(40)), layer(X, causal(40)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("r", [0, 2, 5])
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2)])
def test_the_curve_is_the_error_of_the_layer_cut_to_size(bases, heads, kv, r):
    torch.manual_seed(1)
    layer = make(heads, kv, rotary=True)
    torch.manual_seed(2)
    width = contexts(layer).width
    curve = value_curve(width, bases(width, ridge=RIDGE), ridge=RIDGE)
    small = cut(layer, width, bases(width, ridge=RIDGE), r)
    assert small.W_v.shape == (kv * r, 16)
    torch.manual_seed(2)
    for errors in (curve.fit, curve.held):
        X = inputs(n=120)
        left = (layer(X, causal(120)) - small(X, causal(120))).square().sum(1).mean()
        assert errors[r] == pytest.approx(float(left), rel=1e-7)


def test_bases_are_orthogonal(bases, rows):
    Q = bases(rows.width, ridge=1e-3)
    torch.testing.assert_close(Q.mT @ Q, torch.eye(5, dtype=torch.float64).expand_as(Q))


def test_a_unit_by_rank_is_one_coordinate_of_every_head(rows):
    w, Q = rows.width, eliminated(rows.width, ridge=1e-3)
    turned = by_rank(w, Q)
    Z = rows.X.reshape(len(rows.X), w.units, 5)
    Z = torch.stack([Z[:, h] @ Q[h // w.group] for h in range(w.units)], 2).flatten(1)
    torch.testing.assert_close(turned.fit.gram, Z.mT @ Z)
    torch.testing.assert_close(Z @ turned.W.mT, rows.X @ w.W.mT)
    assert (turned.units, turned.unit) == (5, w.units)


def test_error_never_grows_with_rank_and_no_reduction_beats_eckart_and_young(bases, rows):
    curve = value_curve(rows.width, bases(rows.width, ridge=RIDGE), ridge=RIDGE)
    assert curve.sizes == (0, 1, 2, 3, 4, 5)
    assert list(curve.fit) == sorted(curve.fit, reverse=True)
    assert curve.fit[-1] == curve.held[-1] == 0
    assert all(held >= floor - 1e-9 * curve.held[0] for held, floor in zip(curve.held, curve.floor, strict=True))


def test_ranks_are_nested(rows):
    Q = eliminated(rows.width, ridge=1e-3)
    large, small = (value_ranks(rows.width, Q, r, ridge=1e-3) for r in (4, 2))
    assert torch.equal(large.S[:, :2], small.S)


def test_one_head_loses_the_energy_discarded(bases):
    """The best any linear map of that rank can do, in the metric of the values after attention."""
    width = make_rows(6, units=1, bias=True, m=9, n=200).width
    width = replace(width, held=width.fit)
    curve = value_curve(width, bases(width, ridge=RIDGE), ridge=RIDGE)
    assert curve.fit == pytest.approx(curve.floor, rel=1e-6, abs=1e-8)


def test_heads_that_do_not_correlate_lose_the_energy_each_discards(bases):
    rows = make_rows(4, units=3, m=9, n=200)
    width = rows.width
    G = torch.block_diag(*(width.fit.gram[i : i + 4, i : i + 4] for i in (0, 4, 8)))
    width = replace(width, fit=replace(width.fit, gram=G), held=replace(width.fit, gram=G))
    curve = value_curve(width, bases(width, ridge=RIDGE), ridge=RIDGE)
    for r in range(5):
        parts = (width.W[:, i : i + 4] @ G[i : i + 4, i : i + 4] @ width.W[:, i : i + 4].mT / 200 for i in (0, 4, 8))
        energy = sum(float(torch.linalg.eigvalsh(part)[-4:].flip(0)[r:].sum()) for part in parts)
        assert curve.fit[r] == pytest.approx(energy, rel=1e-6, abs=1e-7)


def test_heads_of_a_group_with_proportional_moments_lose_the_energy_discarded(bases):
    """Their readers count by the size of what they read."""
    C = make_rows(4, units=1, n=200).width.fit.second(centred=False)
    W = torch.randn(9, 12, dtype=torch.float64)
    c = torch.tensor([1.0, 0.1, 4.0], dtype=torch.float64)
    m = Moments(100, torch.zeros(12).double(), 100 * torch.block_diag(*(x * C for x in c)))
    width = Width("", W, m, m, unit=4, group=3)
    curve = value_curve(width, bases(width, ridge=RIDGE), ridge=RIDGE)
    stacked = torch.cat([x.sqrt() * W[:, 4 * h : 4 * h + 4] for h, x in enumerate(c)])
    assert curve.fit == pytest.approx(eckart_young(stacked, C).tolist(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_the_first_direction_given_up_is_the_best_there_is(heads):
    """One value head read by several query heads: no other direction, far or near, costs less after the refit. For one
    query head it is an eigenvector, for more the descent ends a little before the minimum."""
    for seed in range(4):
        torch.manual_seed(seed)
        width = make_rows(4, heads, units=heads, m=9, n=200).width
        Q = eliminated(width, ridge=RIDGE)
        least = value_curve(width, Q, ridge=RIDGE).fit[3]
        n = Q[0, :, -1]
        for scale in [0.02] * 10 + [10.0] * 30:
            other = (n + scale * torch.randn(4, dtype=torch.float64))[:, None]
            basis = torch.linalg.qr(other, mode="complete").Q.flip(1)[None]
            assert value_curve(width, basis, ridge=RIDGE).fit[3] >= least * (1 - (1e-7 if heads == 1 else 1e-3))


def test_elimination_sees_what_heads_say_of_each_other():
    """Two heads with the same values: what one keeps the other may lose. Looking at each head alone cannot know."""
    torch.manual_seed(0)
    for group in (1, 2):
        lost = {name: 0.0 for name in BASES}
        for _ in range(6):
            Z, Y = (torch.randn(300, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64) for _ in range(2))
            X = torch.cat([Z, Z @ torch.randn(6, 6, dtype=torch.float64) + 0.3 * Y, Y, Z + Y], 1)
            width = of(X, X, torch.randn(20, 24, dtype=torch.float64), 6, group).width
            for name, find in BASES.items():
                lost[name] += value_curve(width, find(width, ridge=RIDGE), ridge=RIDGE).fit[2]  # of 12 directions 8
        assert lost["eliminated"] < 0.95 * lost["whitened"]


def test_low_rank_is_elimination(rows):
    expected = value_curve(rows.width, eliminated(rows.width, ridge=1e-3), ridge=1e-3)
    assert low_rank(rows.width, ridge=1e-3) == expected


def test_values_nobody_reads_go_first(bases, rows):
    w = rows.width
    W = w.W.reshape(9, w.units, 5).clone()
    W[:, :, 1] = 0
    width = replace(w, W=W.flatten(1))
    curve = value_curve(width, bases(width, ridge=1e-9), ridge=1e-9)
    assert curve.fit[4] < 1e-7 * curve.fit[0]


def test_the_choice_does_not_depend_on_the_unit_of_measurement(bases, rows):
    w = rows.width
    scaled = of(1e3 * rows.X, 1e3 * rows.Y, w.W / 1e3, w.unit, w.group, w.bias).width
    a, b = (value_curve(x, bases(x, ridge=1e-3), ridge=1e-3) for x in (w, scaled))
    assert b.held == pytest.approx(a.held, rel=1e-6)


def test_moments_of_few_rows_are_no_obstacle(bases):
    width = make_rows(5, 2, units=4, m=9, n=12).width
    curve = value_curve(width, bases(width, ridge=1e-6), ridge=1e-6)
    assert all(torch.isfinite(torch.tensor(curve.held)))


def test_moments_of_reduced_values_are_those_of_the_reduced_rows(rows):
    w = rows.width
    S = torch.randn(w.units // w.group, 3, 5, dtype=torch.float64)
    Z = torch.cat([rows.X[:, h * 5 : (h + 1) * 5] @ S[h // w.group].mT for h in range(w.units)], 1)
    found = on_values(w.fit, S, group=w.group)
    torch.testing.assert_close(found.gram, Z.mT @ Z)
    torch.testing.assert_close(found.sum, Z.sum(0))

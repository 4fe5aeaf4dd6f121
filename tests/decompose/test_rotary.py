"""Rotary planes: only a complex number for each may move, so they are selected, rescaled, and judged by real scores."""

from dataclasses import replace

import pytest
import torch
from attention import Layer, causal, inputs, make
from torch import Tensor

from slimformer.decompose.bilinear import on_heads
from slimformer.decompose.elimination import elimination
from slimformer.decompose.reduction import Width, eckart_young
from slimformer.decompose.response import response
from slimformer.decompose.rotary import (
    elimination_orders,
    plane_curve,
    plane_ranks,
    planes,
    real_form,
    turned,
)
from slimformer.linalg.moments import Moments

RIDGE = 1e-12
EXACT = {"rtol": 0, "atol": 1e-10}
d, n = 8, 4
shapes = pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (3, 1)])
shared_or_not = pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])


def layer_of(heads: int = 4, kv: int = 2) -> Layer:
    return make(heads, kv, d, rotary=True)


def effects(layer: Layer, X: Tensor) -> Tensor:
    """What planes do to the output, of all queries."""
    mask = causal(len(X))
    q, k, v = layer.scale * layer.queries(X), layer.keys(X), layer.values(X)
    return response(q, k, v, layer.weights(X, mask), layer.W_o).effects


def cut(layer: Layer, A: Tensor, order: tuple[int, ...], r: int) -> Layer:
    kept = plane_ranks(A, order, r * layer.kv, kv=layer.kv, ridge=RIDGE)
    return replace(
        layer, W_q=on_heads(kept.N, layer.W_q), b_q=on_heads(kept.N, layer.b_q),
        W_k=on_heads(kept.M, layer.W_k), b_k=on_heads(kept.M, layer.b_k),
        frequencies=layer.frequencies[kept.planes],
    )  # fmt: skip


def complexes(x: Tensor) -> Tensor:
    return torch.complex(x[..., :n], x[..., n:])


def contributions(q: Tensor, k: Tensor) -> Tensor:
    """Re and Im of what every plane adds to the scores of rows of q and k: queries × keys × d."""
    s = complexes(q)[:, None].conj() * complexes(k)
    return torch.cat([s.real, s.imag], -1)


def test_a_complex_number_may_move_between_a_query_plane_and_its_key_plane():
    layer, X = layer_of(), inputs()
    z = torch.randn(2, n, dtype=torch.complex128)
    N, M = (torch.diag_embed(w) for w in (z, 1 / z.conj()))
    moved = replace(
        layer, W_q=on_heads(real_form(N).repeat_interleave(2, 0), layer.W_q),
        b_q=on_heads(real_form(N).repeat_interleave(2, 0), layer.b_q),
        W_k=on_heads(real_form(M), layer.W_k), b_k=on_heads(real_form(M), layer.b_k),
    )  # fmt: skip
    torch.testing.assert_close(moved(X, causal(40)), layer(X, causal(40)), **EXACT)


def test_planes_are_turned_by_cosines_and_sines_as_complex_numbers_are():
    layer, X = layer_of(), inputs()
    angle = torch.arange(len(X))[:, None] * torch.cat([layer.frequencies, layer.frequencies])
    still = replace(layer, frequencies=None).queries(X)
    torch.testing.assert_close(turned(still, angle.cos(), angle.sin()), layer.queries(X), **EXACT)


def test_other_maps_may_not():
    layer, X = layer_of(), inputs()
    Q = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q.expand(4, d, d)
    other = replace(
        layer, W_q=on_heads(Q, layer.W_q), b_q=on_heads(Q, layer.b_q), W_k=on_heads(Q[:2], layer.W_k),
        b_k=on_heads(Q[:2], layer.b_k),
    )  # fmt: skip
    assert float((other.scores(X) - layer.scores(X)).abs().max()) > 0.1
    still = replace(layer, frequencies=None), replace(other, frequencies=None)
    torch.testing.assert_close(still[0].scores(X), still[1].scores(X), **EXACT)


@shared_or_not
@shapes
def test_all_planes_change_nothing(heads, kv, shared):
    layer, X = layer_of(heads, kv), inputs()
    A = effects(layer, X)
    curve = planes(A, A, kv=kv, ridge=RIDGE, shared=shared)
    full = cut(layer, A, curve.order, n)
    torch.testing.assert_close(full(X, causal(40)), layer(X, causal(40)), **EXACT)
    assert curve.fit[-1] == curve.held[-1] == 0


@shared_or_not
@shapes
def test_curves_are_nested_and_never_grow(heads, kv, shared):
    A = effects(layer_of(heads, kv), inputs())
    curve = planes(A, A, kv=kv, ridge=RIDGE, shared=shared)
    assert sorted(curve.order) == list(range(kv * n))
    assert curve.sizes == tuple(r * kv for r in range(n + 1))
    assert list(curve.fit) == sorted(curve.fit, reverse=True)
    for size in curve.sizes:
        kept = [sorted(u % n for u in curve.order[:size] if u // n == g) for g in range(kv)]
        assert all(len(each) * kv == size for each in kept)
        assert not shared or all(each == kept[0] for each in kept)


@shapes
def test_the_curve_is_the_error_of_the_rescaled_scores(heads, kv):
    """With the moments of the scores themselves, over all pairs of tokens: the layer cut to size is that far off."""
    layer, X = layer_of(heads, kv), inputs()
    q, k = layer.scale * layer.queries(X), layer.keys(X)
    u = torch.stack([contributions(q[h], k[h * kv // heads]).flatten(0, 1) for h in range(heads)])
    A = u.mT @ u / u.shape[1]
    curve = planes(A, A, kv=kv, ridge=RIDGE, shared=False)
    for r in range(n + 1):
        small = cut(layer, A, curve.order, r)
        left = (layer.scores(X) - small.scores(X)).square().mean((1, 2)).sum()
        assert curve.fit[r] == pytest.approx(float(left), rel=1e-7, abs=1e-9)


def test_the_error_of_the_output_is_met_to_first_order():
    """Summed over heads, as if these did not meet in the output."""
    layer, X = layer_of(), inputs()
    faint = torch.tensor([1.0, 1, 1e-3, 1e-3] * 2, dtype=torch.float64).repeat(4)
    layer = replace(layer, W_q=faint[:, None] * layer.W_q, b_q=faint * layer.b_q)
    A = effects(layer, X)
    curve = planes(A, A, kv=2, ridge=RIDGE)
    assert set(curve.order[:4]) == {0, 1, n, n + 1}
    small = cut(layer, A, curve.order, 2)
    δ = layer.contexts(X, causal(40)) - small.contexts(X, causal(40))
    left = sum(
        float((δ[:, h * d : (h + 1) * d] @ layer.W_o[:, h * d : (h + 1) * d].mT).square().sum(1).mean())
        for h in range(4)
    )
    assert curve.fit[2] == pytest.approx(left, rel=1e-2)


def test_rescaling_is_better_than_dropping():
    A = effects(layer_of(), inputs())
    (order,) = elimination_orders(A, kv=1, ridge=RIDGE)
    curve = plane_curve(A, A, [order, order], ridge=RIDGE)
    for r in range(1, n):
        gone = order[r:]
        dropped = float(A[:, gone][:, :, gone].sum())
        assert curve.fit[r] < dropped


@shapes
def test_planes_are_eliminated_as_blocks_of_coordinates_are(heads, kv):
    A = effects(layer_of(heads, kv), inputs())
    pairs = torch.tensor([h * d + c for f in range(n) for h in range(heads) for c in (f, f + n)])
    C = torch.block_diag(*A)[pairs][:, pairs]
    W = torch.block_diag(*[torch.tensor([[1.0] * n + [0.0] * n], dtype=torch.float64)] * heads)[:, pairs]
    m = Moments(100, torch.zeros(len(C)).double(), 100 * C)
    expected = elimination(Width("", W, m, m, unit=2 * heads), ridge=RIDGE).order
    assert elimination_orders(A, kv=1, ridge=RIDGE) == [list(expected)]


def test_planes_of_ones_own_are_better_than_shared_ones():
    A = effects(layer_of(4, 4), inputs())
    own, shared = (planes(A, A, kv=4, ridge=RIDGE, shared=shared).fit for shared in (False, True))
    assert own[n - 1] < shared[n - 1]
    assert all(a <= b * (1 + 1e-9) for a, b in zip(own, shared, strict=True))


def test_held_errors_are_above_the_floor():
    layer = layer_of()
    A, B = effects(layer, inputs()), effects(layer, inputs() * 1.2)
    curve = planes(A, B, kv=2, ridge=1e-3)
    assert all(held >= floor - 1e-12 for held, floor in zip(curve.held, curve.floor, strict=True))
    ones = torch.tensor([[1.0] * n + [0.0] * n], dtype=torch.float64)
    assert curve.floor[0] == pytest.approx(sum(float(eckart_young(ones, b)[0]) for b in B))


def test_without_planes_all_keys_count_alike():
    layer, X = layer_of(), inputs()
    A = effects(layer, X)
    none = cut(layer, A, planes(A, A, kv=2, ridge=RIDGE).order, 0)
    assert none.W_q.shape == (0, 16)
    torch.testing.assert_close(none.weights(X), torch.full((4, 40, 40), 1 / 40, dtype=torch.float64))

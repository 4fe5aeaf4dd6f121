"""Rewrites that cost nothing: attention written out in full gives the same numbers before and after."""

from dataclasses import replace

import pytest
import torch
from attention import Layer, causal, inputs, make, padded

from slimformer.decompose.bilinear import on_heads
from slimformer.decompose.gauges import (
    collapsed,
    folded_bias,
    interpolated,
    reads_interpolated,
    shortest,
)

EXACT = {"rtol": 0, "atol": 1e-10}
MASKS = {"all": None, "causal": causal(40), "padded": padded(40)}

shapes = pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (6, 1)])
rotary = pytest.mark.parametrize("rotary", [False, True], ids=["no rotation", "rotary"])


def same(a: Layer, b: Layer) -> None:
    X = inputs()
    for mask in MASKS.values():
        torch.testing.assert_close(a(X, mask), b(X, mask), **EXACT)


def interpolate_keys(layer: Layer) -> tuple[Layer, int]:
    found = interpolated(layer.W_k, heads=layer.kv)
    each = found.B.mT.repeat_interleave(layer.heads // layer.kv, 0)
    T = found.T.flatten(0, 1)
    new = replace(
        layer, W_q=on_heads(each, layer.W_q), b_q=on_heads(each, layer.b_q), W_k=T, b_k=torch.zeros(len(T)).double()
    )
    return new, found.saved


def interpolate_values(layer: Layer) -> tuple[Layer, int]:
    """Only once the bias is folded: T x has none."""
    found = interpolated(layer.W_v, heads=layer.kv)
    b_o = folded_bias(layer.W_o, layer.b_o, layer.b_v, heads=layer.heads)
    T = found.T.flatten(0, 1)
    W_o = reads_interpolated(layer.W_o, found.B)
    return replace(layer, W_v=T, b_v=torch.zeros(len(T)).double(), W_o=W_o, b_o=b_o), found.saved


@rotary
@shapes
def test_the_bias_of_the_values_moves_into_that_of_the_output(heads, kv, rotary):
    layer = make(heads, kv, rotary=rotary)
    b_o = folded_bias(layer.W_o, layer.b_o, layer.b_v, heads=heads)
    same(layer, replace(layer, b_v=0 * layer.b_v, b_o=b_o))
    bare = folded_bias(layer.W_o, None, layer.b_v, heads=heads)
    torch.testing.assert_close(bare, b_o - layer.b_o)


@shapes
def test_keys_need_no_bias_or_any(heads, kv):
    layer = make(heads, kv)
    same(layer, replace(layer, b_k=0 * layer.b_k))
    same(layer, replace(layer, b_k=-layer.W_k @ inputs(n=400).mean(0)))


def test_rotary_keys_do_need_theirs():
    layer = make(rotary=True)
    X = inputs()
    assert float((layer(X) - replace(layer, b_k=0 * layer.b_k)(X)).abs().max()) > 1e-3


@shapes
def test_keys_become_inputs_and_combinations_of_inputs(heads, kv):
    layer = make(heads, kv)
    new, saved = interpolate_keys(layer)
    same(layer, new)
    assert saved == kv * 6**2


@rotary
@shapes
def test_values_become_inputs_and_combinations_of_inputs(heads, kv, rotary):
    layer = make(heads, kv, rotary=rotary)
    new, saved = interpolate_values(layer)
    same(layer, new)
    assert saved == kv * 6**2


def test_a_square_of_the_hidden_size_over_the_heads_is_saved_for_each_pair():
    """H heads of D/H: H d² = D²/H, once for keys and once for values."""
    layer = make(heads=4, kv=4, d=4, D=16)
    assert interpolate_keys(layer)[1] == interpolate_values(layer)[1] == 16**2 // 4


@pytest.mark.parametrize("d", [3, 16, 20])
def test_an_interpolation_is_exact_and_holds_the_identity(d):
    W = torch.randn(2 * d, 16, dtype=torch.float64)
    found = interpolated(W, heads=2)
    torch.testing.assert_close((found.B @ found.T).flatten(0, 1), W, **EXACT)
    for T, J in zip(found.T, found.J, strict=True):
        assert torch.equal(T[:, J], torch.eye(len(J), dtype=torch.float64))
    assert float(found.T.abs().max()) < 10  # pivoting keeps the coefficients small


def test_rows_beyond_the_rank_are_not_needed():
    layer = make(heads=4, kv=2, d=6)
    W = layer.W_k.reshape(2, 6, -1).clone()
    W[0, 4:] = W[0, :2] - W[0, 2:4]  # rank 4
    W[1, 3:] = 2 * W[1, :3]  # rank 3
    layer = replace(layer, W_k=W.flatten(0, 1))
    new, saved = interpolate_keys(layer)
    assert new.W_k.shape == (2 * 4, 16)
    assert saved == 2 * (6 * 16 - 4 * 12)
    same(layer, new)


def test_one_head_of_full_width_is_one_matrix():
    """The collapse of the minimal transformer is the interpolation with all columns picked: keys are x itself."""
    layer = make(heads=1, kv=1, d=16, D=16)
    X = inputs()
    W, w = collapsed(layer.W_q, layer.b_q, layer.W_k)
    s = layer.scale * (X @ W @ X.mT + X @ w)
    centred = layer.scores(X)[0] - layer.scores(X)[0].mean(1, keepdim=True)
    torch.testing.assert_close(s - s.mean(1, keepdim=True), centred, **EXACT)
    found = interpolated(layer.W_k, heads=1)
    assert torch.equal(found.T[0][:, found.J[0]], torch.eye(16, dtype=torch.float64))
    assert found.saved == 16 * 16  # all of W_k
    new, _ = interpolate_keys(layer)
    torch.testing.assert_close(new.keys(X)[0], X[:, found.J[0]], **EXACT)
    torch.testing.assert_close(new.W_q, W.mT[found.J[0]], **EXACT)
    same(layer, new)


def test_a_collapsed_pair_without_a_bias_has_none():
    layer = make(heads=1, kv=1)
    assert not collapsed(layer.W_q, None, layer.W_k)[1].any()


def test_the_rank_of_a_form_does_not_depend_on_how_its_factors_share_the_size_of_a_row():
    """Rows times 2⁻⁴⁰ in one factor and 2⁴⁰ in the other: the same form, so nothing may be cut."""
    generator = torch.Generator().manual_seed(0)
    R = torch.randn(4, 6, 20, dtype=torch.float64, generator=generator)  # two query heads to a key head
    W = torch.randn(2, 6, 20, dtype=torch.float64, generator=generator)
    scale = torch.tensor([2.0**-40, 1, 1, 2.0**20, 1, 1], dtype=torch.float64)[:, None]
    S, V = shortest(R / scale, W * scale)
    assert S.shape[1] == V.shape[1] == 6
    W[:, 5] = W[:, 0] + W[:, 1]  # now one row says what others say
    S, V = shortest(R / scale, W * scale)
    assert S.shape[1] == 5
    forms = [A.mT @ B for A, B in zip(R, W.repeat_interleave(2, 0), strict=True)]
    for A, B, form in zip(S, V.repeat_interleave(2, 0), forms, strict=True):
        torch.testing.assert_close(A.mT @ B, form, rtol=1e-9, atol=1e-9)

"""Superfluous neurons are found from weights alone, and only those."""

import pytest
import torch
from torch import nn

from slimformer.decompose.gauges import shortest, silent_heads
from slimformer.decompose.neurons import canonical, constants, copies, never_fires, power_scales

N, D = 12, 7


def rows(n: int = N) -> torch.Tensor:
    return torch.randn(n, D + 1, dtype=torch.float64)


def test_rows_of_zeros_write_what_the_activation_makes_of_the_bias():
    up = rows()
    up[3, :-1] = 0
    found = constants([up], nn.functional.gelu)
    assert found[3] == nn.functional.gelu(up[3, -1])
    assert found.isnan().sum() == N - 1


def test_a_gated_neuron_is_constant_if_both_rows_are_or_one_is_zero():
    gate, up = rows(), rows()
    gate[0, :-1] = 0  # a factor, but not a constant
    gate[1] = 0
    up[2] = 0
    gate[3, :-1] = up[3, :-1] = 0
    found = constants([gate, up], nn.functional.silu)
    assert found[0].isnan()
    assert found[1] == found[2] == 0
    assert found[3] == nn.functional.silu(gate[3, -1]) * up[3, -1]
    assert found.isnan().sum() == N - 3


@pytest.mark.parametrize("norm", [nn.LayerNorm(D), nn.RMSNorm(D)], ids=["LayerNorm", "RMSNorm"])
def test_what_never_fires_does_not_on_the_input_that_would_make_it(norm):
    """The bound is reached: just below it a neuron is dead, just above it there is an input that wakes it."""
    norm = norm.double()
    nn.init.normal_(norm.weight)
    shift = getattr(norm, "bias", None)
    if shift is not None:
        nn.init.normal_(shift)
    centred = shift is not None
    with torch.no_grad():
        W = rows()[:, :-1]
        spread = W * norm.weight
        worst = spread - spread.mean(1, keepdim=True) if centred else spread
        most = (norm(1e6 * worst) * W).sum(1)  # the input that points along the row, far from the norm's epsilon
        for off, fires in ((-1e-3, False), (1e-3, True)):
            told = never_fires(torch.cat([W, (off - most)[:, None]], 1), norm.weight, shift, centred=centred)
            assert told.all() != fires
            assert bool((most + off - most > 0).all()) == fires


def test_copies_are_found_whatever_their_scale_and_others_are_not():
    gate, up = rows(), rows()
    gate[5], up[5] = gate[2], -3 * up[2]
    gate[9], up[9] = gate[2], 0.7 * up[2]
    gate[7] = gate[4]  # another row behind the gate
    keys, scale = canonical([gate, up], homogeneous=False)
    same = copies(keys, rtol=1e-12)
    assert len(set(same[[2, 5, 9]].tolist())) == 1
    assert len(set(same.tolist())) == N - 2
    torch.testing.assert_close(scale[5] / scale[2], torch.tensor(-3.0).double())


def test_a_negative_multiple_is_no_copy_for_a_relu_and_no_multiple_is_for_others():
    up = rows()
    up[1], up[2], up[3] = -2 * up[0], 2 * up[0], up[0]
    relu, gelu = (copies(canonical([up], homogeneous=h)[0], rtol=1e-12) for h in (True, False))
    assert relu[0] == relu[2] == relu[3] != relu[1]
    assert gelu[0] == gelu[3]
    assert len(set(gelu[:3].tolist())) == 3


def test_scales_are_powers_of_two_and_bring_norms_together():
    write, read = torch.rand(N) * 100, torch.rand(N) / 100
    c = power_scales(write, read)
    assert torch.equal(c.log2(), c.log2().round())
    assert float((read / c / (write * c)).log2().abs().max()) <= 1 + 1e-5
    assert power_scales(torch.zeros(1), torch.ones(1)) == 1


@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (6, 1)])
def test_factors_get_the_rank_of_their_product(heads, kv):
    d, r = 6, 3
    R, W = torch.randn(heads, d, 9).double(), torch.randn(kv, d, 11).double()
    mix = torch.randn(kv, d, r).double()
    W = mix @ torch.randn(kv, r, 11).double()
    short, other = shortest(R, W)
    assert other.shape[1] == r
    group = heads // kv
    torch.testing.assert_close(
        short.mT @ other.repeat_interleave(group, 0), R.mT @ W.repeat_interleave(group, 0), rtol=0, atol=1e-10
    )
    assert shortest(R, 0 * W)[1].shape[1] == 0
    assert shortest(0 * R, W)[1].shape[1] == 0


def test_a_head_is_silent_though_neither_factor_is_zero():
    R, W = torch.randn(2, 6, 9).double(), torch.randn(2, 6, 11).double()
    R[1, :3] = 0
    W[1, 3:] = 0
    turn = torch.linalg.qr(torch.randn(6, 6).double())[0]
    assert silent_heads(turn @ R, turn @ W).tolist() == [False, True]

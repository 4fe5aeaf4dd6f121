"""Laws of attention over a past in groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from slimformer.decompose.sequence_stream import Grouping, Memory, stream_attention

HOW = Grouping(k=16, window=16, sinks=2, second_order=True)  # blocks of 8
HOWS = [HOW, replace(HOW, kind="mean"), replace(HOW, metric=False, mass=False, second_order=False)]
B, HQ, H, D = 2, 4, 2, 6


def tokens(n: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(B, h, n, D, generator=generator, dtype=torch.float64) for h in (HQ, H, H))


def run(Q, K, V, how=HOW, real=None, memory=None):
    real = torch.ones(B, K.shape[2], dtype=torch.bool) if real is None else real
    return stream_attention(Q, K, V, real, memory or Memory.empty(K, V, D**-0.5), how)


def exact(Q, K, V, real=None):
    mask = torch.ones(K.shape[2], K.shape[2], dtype=torch.bool).tril()
    mask = mask if real is None else mask & real[:, None, None, :]
    return sdpa(Q, K.repeat_interleave(HQ // H, 1), V.repeat_interleave(HQ // H, 1), mask)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("n", [1, 7, 16, 16 + 16])
def test_up_to_k_and_window_it_is_exact(how, n):
    torch.testing.assert_close(run(*tokens(n), how)[0], exact(*tokens(n)))


@pytest.mark.parametrize("how", HOWS)
def test_the_future_changes_nothing(how):
    Q, K, V = tokens(80)
    before = run(Q, K, V, how)[0]
    for t in (31, 40, 63):
        others = [torch.cat([x[:, :, :t], 5 * y[:, :, t:]], 2) for x, y in zip((Q, K, V), tokens(80, 1), strict=True)]
        assert torch.equal(run(*others, how)[0][:, :, :t], before[:, :, :t])
        assert not torch.allclose(run(*others, how)[0][:, :, t:], before[:, :, t:])


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("parts", [[1] * 80, [33, 1, 1, 20, 25]])
def test_piece_by_piece_gives_what_all_at_once_gives(how, parts):
    Q, K, V = tokens(80)
    whole, last = run(Q, K, V, how)
    made, memory = [], None
    for q, k, v in zip(*(x.split(parts, 2) for x in (Q, K, V)), strict=True):
        out, memory = run(q, k, v, how, memory=memory)
        made.append(out)
    torch.testing.assert_close(torch.cat(made, 2), whole)
    torch.testing.assert_close(memory.groups.K, last.groups.K)


def test_memory_is_bounded_and_no_mass_is_lost():
    Q, K, V = tokens(120)
    _, memory = run(Q, K, V)
    assert memory.slots <= HOW.k + HOW.window and memory.seen == 120
    torch.testing.assert_close(memory.groups.mass.sum(-1) + memory.K.shape[2], torch.full((B, H), 120.0).double())


def test_sinks_stay_what_they_were():
    Q, K, V = tokens(80)
    _, memory = run(Q, K, V)
    torch.testing.assert_close(memory.groups.K[:, :, :2], K[:, :, :2])
    torch.testing.assert_close(memory.groups.mass[:, :, :2], torch.ones(B, H, 2).double())


@pytest.mark.parametrize("how", HOWS)
def test_what_stands_in_pads_changes_nothing_and_all_stays_finite(how):
    Q, K, V = tokens(80)
    real = torch.ones(B, 80, dtype=torch.bool)
    real[0, :21] = False
    other = [x.clone() for x in (Q, K, V)]
    for x in other:
        x[0, :, :21] = 100
    a, b = run(Q, K, V, how, real)[0], run(*other, how, real)[0]
    assert bool(a.isfinite().all())
    torch.testing.assert_close(a[0, :, 21:], b[0, :, 21:])
    short = [x[:, :, :32] for x in (Q, K, V)]
    torch.testing.assert_close(run(*short, how, real[:, :32])[0][0, :, 21:], exact(*short, real[:, :32])[0, :, 21:])


def test_pads_in_one_sequence_do_not_touch_another():
    Q, K, V = tokens(80)
    real = torch.ones(B, 80, dtype=torch.bool)
    alone = run(Q, K, V)[0][1]
    real[0, :21] = False
    torch.testing.assert_close(run(Q, K, V, real=real)[0][1], alone)


def test_repeated_keys_cost_nothing():
    Q, K, V = tokens(96)
    K = K[:, :, torch.arange(96) % 6]
    how = replace(HOW, sinks=0, k=18)  # every key is there thrice among those that are spaced evenly
    values = V[:, :, torch.arange(96) % 6]
    torch.testing.assert_close(run(Q, K, values, how)[0], exact(Q, K, values))

"""Moments of scores from those of x, and planes that turn almost together: what only the comparisons use."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import benched  # noqa: F401  puts the benchmarks on the path
import pytest
import torch
from torch import Tensor

from score_moments import (
    energy_orders,
    frequency_groups,
    hermitian,
    mixed,
    plane_moments,
    rotary_moments,
    score_moments,
)
from slimformer.decompose.bilinear import Scores, on_heads
from slimformer.linalg.moments import Moments

sys.path.insert(0, str(Path(__file__).parents[1] / "decompose"))
from attention import Layer, inputs, make, of_inputs

EXACT = {"rtol": 0, "atol": 1e-10}
d, n = 8, 4


def layer_of(heads: int = 4, kv: int = 2) -> Layer:
    return make(heads, kv, d, rotary=True)


def complexes(x: Tensor) -> Tensor:
    return torch.complex(x[..., :n], x[..., n:])


def test_moments_are_those_of_the_queries_and_centred_keys():
    layer, X = make(4, 2), inputs()
    q, k = layer.scale * layer.queries(X), layer.keys(X)
    k = (k - k.mean(1, keepdim=True)).repeat_interleave(2, 0)
    found = score_moments(Moments.of(X), layer.W_q, layer.b_q, layer.W_k, heads=layer.heads, scale=layer.scale)
    torch.testing.assert_close(found.queries, q.mT @ q / len(X))
    torch.testing.assert_close(found.keys, k.mT @ k / len(X))


def test_energy_orders_planes_by_the_product_of_their_sizes():
    C = torch.diag_embed(torch.tensor([[1.0, 4, 2, 3, 0, 0, 0, 0], [1.0, 1, 9, 1, 0, 0, 0, 0]], dtype=torch.float64))
    scores = Scores(C, torch.eye(d, dtype=torch.float64).expand(2, d, d))
    assert energy_orders(scores, kv=2)[0] == [1, 3, 2, 0]
    assert energy_orders(scores, kv=2)[1][0] == 2
    assert energy_orders(scores, kv=1) == [[2, 1, 3, 0]]


@pytest.mark.parametrize("length", [1, 7, 300])
def test_moments_of_planes_are_means_over_queries_keys_and_positions(length):
    q, k = torch.randn(5, d, dtype=torch.float64) + 0.3, torch.randn(6, d, dtype=torch.float64) - 0.4
    θ = torch.tensor([1.0, 0.1, 0.01, 0.0], dtype=torch.float64)
    turns = torch.polar(torch.ones(length, n).double(), -torch.arange(length)[:, None] * θ)  # j − i = 0, −1, …
    s = complexes(q)[:, None, None].conj() * complexes(k)[:, None] * turns
    u = torch.cat([s.real, s.imag], -1).flatten(1, 2)
    u = u - u.mean(1, keepdim=True)  # softmax does not see what is common to the keys of a query
    expected = torch.einsum("zia,zib->ab", u, u) / (u.shape[0] * u.shape[1])
    found = plane_moments((q.mT @ q / 5)[None], (k.mT @ k / 6)[None], k.mean(0)[None], θ, length=length)
    torch.testing.assert_close(found[0], expected)


def test_moments_of_planes_follow_from_those_of_x():
    layer, x = layer_of(), of_inputs()
    θ = layer.frequencies
    found = rotary_moments(x, (layer.W_q, layer.b_q), (layer.W_k, layer.b_k), θ, length=30, scale=layer.scale)
    still, X = replace(layer, frequencies=None), inputs(n=50)
    x = Moments.of(X)
    q, k = layer.scale * still.queries(X), still.keys(X).repeat_interleave(2, 0)
    again = rotary_moments(x, (layer.W_q, layer.b_q), (layer.W_k, layer.b_k), θ, length=30, scale=layer.scale)
    torch.testing.assert_close(again, plane_moments(q.mT @ q / 50, k.mT @ k / 50, k.mean(1), θ, length=30))
    assert found.shape == (4, d, d)
    assert float(torch.linalg.eigvalsh(found).min()) > -1e-9


def test_groups_of_frequencies_hold_together():
    θ = 1e4 ** -(torch.arange(24, dtype=torch.float64) / 24)
    groups = frequency_groups(θ, length=256, tolerance=0.5)
    assert sorted(f for group in groups for f in group) == list(range(24))
    assert all(float(θ[group].max() - θ[group].min()) * 256 <= 0.5 for group in groups)
    assert len(groups[0]) > 4 and len(groups[-1]) == 1
    assert len(frequency_groups(θ, length=256, tolerance=0.0)) == 24


def moments_of(layer: Layer, X: Tensor) -> Scores:
    still = replace(layer, frequencies=None)
    q, k = layer.scale * still.queries(X), still.keys(X).repeat_interleave(layer.heads // layer.kv, 0)
    return Scores(q.mT @ q / len(X), k.mT @ k / len(X))


def mix(layer: Layer, X: Tensor, groups: list[list[int]]) -> Layer:
    maps, θ = mixed(moments_of(layer, X), layer.frequencies, groups, kv=layer.kv, ridge=1e-9)
    return replace(
        layer, W_q=on_heads(maps.N, layer.W_q), b_q=on_heads(maps.N, layer.b_q),
        W_k=on_heads(maps.M, layer.W_k), b_k=on_heads(maps.M, layer.b_k), frequencies=θ,
    )  # fmt: skip


def test_planes_that_turn_together_mix_for_free_and_lose_the_energy_discarded():
    layer, X = layer_of(2, 2), inputs()
    layer = replace(layer, frequencies=torch.full((n,), 0.3, dtype=torch.float64))
    new = mix(layer, X, [[0, 1, 2, 3]])
    torch.testing.assert_close(new.scores(X), layer.scores(X), **EXACT)
    q, k = (hermitian(C) for C in (moments_of(new, X).queries, moments_of(new, X).keys))
    for C_q, C_k, before in zip(q, k, moments_of(layer, X).queries, strict=True):
        assert float((C_q - torch.diag(C_q.diagonal())).abs().max()) < 1e-6 * float(before.abs().max())
        σ2 = (C_q.diagonal() * C_k.diagonal()).real
        assert σ2.tolist() == sorted(σ2.tolist(), reverse=True)


def test_mixing_costs_no_more_than_the_angles_differ():
    layer, X = layer_of(4, 2), inputs()
    groups = [[0], [1, 2, 3]]
    new = mix(layer, X, groups)
    angle = float((layer.frequencies[1:] - layer.frequencies[1:].mean()).abs().max()) * (len(X) - 1)
    q, k = layer.queries(X).norm(dim=2), layer.keys(X).norm(dim=2).repeat_interleave(2, 0)
    bound = layer.scale * angle * q[:, :, None] * k[:, None, :]
    assert bool(((new.scores(X) - layer.scores(X)).abs() <= bound + 1e-9).all())
    torch.testing.assert_close(new.frequencies[1:], layer.frequencies[1:].mean().expand(3))
    assert float(new.frequencies[0]) == float(layer.frequencies[0])


def test_no_groups_no_mixing():
    layer, X = layer_of(), inputs()
    torch.testing.assert_close(mix(layer, X, [[0], [1], [2], [3]]).W_q, layer.W_q)

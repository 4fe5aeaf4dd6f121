"""Laws of attention over fewer keys."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from slimformer.decompose.sequence import (
    clusters,
    jl_projection,
    least_squares_values,
    pooled,
    relative_error,
    segments,
    spread,
)

B, H, N, D = 2, 3, 24, 8
SCALE = D**-0.5


@pytest.fixture
def qkv():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(B, H, N, D, generator=generator, dtype=torch.float64) for _ in range(3))


def everything() -> torch.Tensor:
    return torch.ones(B, N, dtype=torch.bool)


def grouped_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    mass: torch.Tensor | None = None,
    S: torch.Tensor | None = None,
    *,
    scale: float,
) -> torch.Tensor:
    """Σ_c softmax_c(s q·k̄_c + log n_c + ½ s² qᵀ S_c q) v̄_c; without `mass` every group that exists counts once."""
    scores = (Q * scale) @ K.mT
    if S is not None:
        scores = scores + (Q.square() * (scale**2 / 2)) @ S.mT
    if mass is not None:
        scores = scores + mass.log()[..., None, :]
    return scores.softmax(-1) @ V


def grouped(Q, K, V, mask, k, assignment=None):
    found = clusters(K, mask, k) if assignment is None else assignment
    means, mass = pooled(K, found, k, mask)
    S = spread(K, means, found, mask)
    return grouped_attention(Q, means, pooled(V, found, k, mask)[0], mass, S, scale=SCALE)


@pytest.mark.parametrize("k", [N, N + 5])
def test_groups_of_one_are_exact(qkv, k):
    torch.testing.assert_close(grouped(*qkv, everything(), k), sdpa(*qkv))


def test_a_short_sequence_beside_a_long_one_is_exact(qkv):
    mask = everything()
    mask[0, 10:] = False
    Q, K, V = qkv
    torch.testing.assert_close(grouped(Q, K, V, mask, 10)[0], sdpa(Q[0], K[0, :, :10], V[0, :, :10]))


def test_equal_keys_in_one_group_are_exact(qkv):
    Q, K, V = qkv
    K = K[:, :, torch.arange(N) % 6]
    group = (torch.arange(N) % 6).expand(B, H, N)
    torch.testing.assert_close(grouped(Q, K, V, everything(), 6, group), sdpa(Q, K, V))


@pytest.mark.parametrize("left", [True, False])
def test_pads_change_nothing(qkv, left):
    Q, K, V = qkv
    junk = [torch.full((B, H, 7, D), 3.0, dtype=x.dtype) for x in (K, V)]
    parts = [(pad, x) if left else (x, pad) for pad, x in zip(junk, (K, V), strict=True)]
    mask = torch.ones(B, N + 7, dtype=torch.bool)
    mask[:, slice(0, 7) if left else slice(N, None)] = False
    padded = grouped(Q, *(torch.cat(part, 2) for part in parts), mask, 6)
    torch.testing.assert_close(padded, grouped(Q, K, V, everything(), 6))


def test_every_sweep_brings_keys_nearer_and_a_warm_start_goes_on(qkv):
    K, mask, errors = qkv[1], everything(), []
    for sweeps in (1, 2, 4, 8):
        found = clusters(K, mask, 5, sweeps)
        means, mass = pooled(K, found, 5, mask)
        errors.append(float((spread(K, means, found, mask).sum(-1) * mass).sum()))
    assert errors == sorted(errors, reverse=True) and errors[-1] < errors[0]
    assert torch.equal(clusters(K, mask, 5, 2, start=clusters(K, mask, 5, 2)), clusters(K, mask, 5, 3))


def test_pooling_is_linear_and_keeps_all_mass(qkv):
    K, mask = qkv[1], everything()
    mask[1, 20:] = False
    found = clusters(K, mask, 5)
    means, mass = pooled(K, found, 5, mask)
    torch.testing.assert_close(mass.sum(-1), mask.sum(1)[:, None].expand(B, H).double())
    torch.testing.assert_close((means * mass[..., None]).sum(2), (K * mask[:, None, :, None]).sum(2))


def test_weights_stand_for_repeated_tokens(qkv):
    K = qkv[1]
    weight = torch.randint(1, 4, (B, H, N), generator=torch.Generator().manual_seed(1)).double()
    found = segments(everything(), 5)[:, None].expand(B, H, N)
    for b in range(B):
        for h in range(H):
            times = weight[b, h].long()
            long = K[b, h].repeat_interleave(times, 0)[None, None]
            group = found[b, h].repeat_interleave(times)[None, None]
            means, mass = pooled(long, group, 5, torch.ones(1, long.shape[2], dtype=torch.bool))
            torch.testing.assert_close(pooled(K, found, 5, weight)[0][b, h], means[0, 0])
            torch.testing.assert_close(pooled(K, found, 5, weight)[1][b, h], mass[0, 0])


def test_mass_and_second_order_each_bring_the_output_nearer(qkv):
    Q, K, V = qkv
    K[:, :, 4:] = K[:, :, :1] + 0.1 * K[:, :, 4:]  # one heavy group
    mask, exact = everything(), sdpa(Q, K, V)
    found = clusters(K, mask, 6)
    means, mass = pooled(K, found, 6, mask)
    values, S = pooled(V, found, 6, mask)[0], spread(K, means, found, mask)
    forms = ((mass > 0).double(), None), (mass, None), (mass, S)
    errors = [
        float(relative_error(exact, grouped_attention(Q, means, values, m, s, scale=SCALE)).mean()) for m, s in forms
    ]
    assert errors[0] > errors[1] > errors[2]


def test_segments_are_even_and_in_order():
    mask = torch.tensor([[True] * 8, [False] * 2 + [True] * 6])
    assert segments(mask, 4).tolist() == [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 2, 2, 3]]


def test_random_projection_of_the_identity_misses_by_root_n_over_k():
    n, k = 256, 64
    R, w = jl_projection(n, k), torch.randn(n, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float((R.mT @ (R @ w) - w).norm() / w.norm()) == pytest.approx((n / k) ** 0.5, rel=0.2)


def test_least_squares_values_solve_their_equations_and_never_lose_on_what_they_fit(qkv, monkeypatch):
    monkeypatch.setattr("slimformer.decompose.sequence.RTOL", 1e-12)
    Q, K, V = qkv
    E = torch.nn.functional.one_hot(segments(everything()[:1], 6)[0], 6).double().mT[None]
    E = E / E.sum(-1, keepdim=True)
    P = (Q @ (E @ K).mT * SCALE).softmax(-1)
    Y = sdpa(Q, K, V)
    F = least_squares_values(P, V, Y, E, ridge=1e-2, steps=2000)
    gram = P.mT @ P
    λ = 1e-2 * (gram.diagonal(dim1=2, dim2=3).mean(-1) * V.square().sum(-1).mean(-1)).sum(0)[:, None, None]
    torch.testing.assert_close((gram @ F @ V @ V.mT).sum(0) + λ * F, (P.mT @ Y @ V.mT).sum(0) + λ * E)
    assert float((Y - P @ F @ V).norm()) < float((Y - P @ (E @ V)).norm())

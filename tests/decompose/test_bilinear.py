"""Ranks of queries and keys: the gauge changes nothing, and what is cut is the least that can be cut."""

from dataclasses import replace

import pytest
import torch
from attention import Layer, causal, inputs, make, padded

from slimformer.decompose.bilinear import (
    Scores,
    balanced,
    nearest_product,
    on_heads,
    score_curve,
    score_gauge,
    score_ranks,
)

RIDGE = 1e-13
EXACT = {"rtol": 0, "atol": 1e-10}
shapes = pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (3, 1)])


def moments(layer: Layer, X: torch.Tensor) -> Scores:
    q, k = layer.scale * layer.queries(X), layer.keys(X)
    k = (k - k.mean(1, keepdim=True)).repeat_interleave(layer.heads // layer.kv, 0)
    return Scores(q.mT @ q / len(X), k.mT @ k / len(X))


def cut(layer: Layer, X: torch.Tensor, r: int, ridge: float = RIDGE) -> Layer:
    """The layer with queries and keys of rank r, fitted on X; keys have no bias."""
    group = layer.heads // layer.kv
    kept = score_ranks(score_gauge(moments(layer, X), group=group, ridge=ridge), r, group=group)
    W_k = on_heads(kept.M, layer.W_k)
    return replace(
        layer, W_q=on_heads(kept.N, layer.W_q), b_q=on_heads(kept.N, layer.b_q), W_k=W_k, b_k=W_k.new_zeros(len(W_k))
    )


def off(layer: Layer, other: Layer, X: torch.Tensor) -> float:
    """Mean over all pairs of tokens of the squared difference of scores, each query's mean taken off, summed over
    heads."""
    Δ = layer.scores(X) - other.scores(X)
    return float((Δ - Δ.mean(2, keepdim=True)).square().mean((1, 2)).sum())


@shapes
def test_full_rank_changes_nothing(heads, kv):
    layer, X = make(heads, kv), inputs()
    full = cut(layer, X, 6)
    for mask in (None, causal(40), padded(40)):
        torch.testing.assert_close(full(X, mask), layer(X, mask), **EXACT)


def test_the_scale_of_the_scores_stays():
    """It is an attribute of the module, made from the old head width: no weight absorbs it."""
    layer, X = make(), inputs()
    plain = replace(layer, scale=1.0)
    assert off(layer, cut(layer, X, 3), X) == pytest.approx(layer.scale**2 * off(plain, cut(plain, X, 3), X))


@shapes
def test_the_error_is_the_energy_discarded(heads, kv):
    layer, X, group = make(heads, kv), inputs(), heads // kv
    found = moments(layer, X)
    curve = score_curve(score_gauge(found, group=group, ridge=RIDGE), found, found)
    assert curve.sizes == (0, 1, 2, 3, 4, 5, 6)
    for r in curve.sizes:
        energy = sum(
            float(balanced(C_q.sum(0), C_k[0], ridge=RIDGE)[2][r:].square().sum())
            for C_q, C_k in zip(found.queries.split(group), found.keys.split(group), strict=True)
        )
        assert curve.fit[r] == pytest.approx(energy, rel=1e-8, abs=1e-11)
        assert curve.fit[r] == pytest.approx(off(layer, cut(layer, X, r), X), rel=1e-8, abs=1e-11)


def test_held_errors_are_those_of_other_rows():
    layer, X, Y = make(4, 2), inputs(), 1.3 * inputs() + 0.2
    curve = score_curve(score_gauge(moments(layer, X), group=2, ridge=1e-3), moments(layer, X), moments(layer, Y))
    for r in (0, 2, 5):
        assert curve.held[r] == pytest.approx(off(layer, cut(layer, X, r, 1e-3), Y), rel=1e-8)
    assert all(held >= floor - 1e-9 for held, floor in zip(curve.held, curve.floor, strict=True))


def test_one_head_to_a_group_reaches_the_floor():
    found = moments(make(), inputs())
    curve = score_curve(score_gauge(found, group=1, ridge=RIDGE), found, found)
    assert curve.fit == pytest.approx(curve.floor, rel=1e-7, abs=1e-11)


@pytest.mark.parametrize("r", [1, 3, 5])
def test_no_other_form_of_the_rank_is_better(r):
    """Neither the SVD of the weights, W_qᵀ W_k, nor anything near our own answer."""
    for seed in range(3):
        torch.manual_seed(seed)
        layer, X = make(1, 1), inputs()
        best = cut(layer, X, r)
        form = torch.cat([layer.W_q, layer.b_q[:, None]], dim=1).mT @ layer.W_k  # what x and a constant make of x
        U, s, Vh = torch.linalg.svd(form)
        W = (U[:, :r] * s[:r]).mT
        plain = replace(layer, W_q=W[:, :-1], b_q=W[:, -1], W_k=Vh[:r], b_k=torch.zeros(r).double())
        assert off(layer, best, X) < off(layer, plain, X)
        for _ in range(20):
            ΔQ, Δb, ΔK = (0.05 * torch.randn_like(W) * W.abs().mean() for W in (best.W_q, best.b_q, best.W_k))
            near = replace(best, W_q=best.W_q + ΔQ, b_q=best.b_q + Δb, W_k=best.W_k + ΔK)
            assert off(layer, best, X) < off(layer, near, X)


def test_a_group_shares_keys_and_no_other_keys_are_better():
    layer, X = make(4, 2), inputs()
    best = cut(layer, X, 3)
    for _ in range(20):
        ΔQ, ΔK = (0.03 * torch.randn_like(W) for W in (best.W_q, best.W_k))
        near = replace(best, W_q=best.W_q + ΔQ, W_k=best.W_k + ΔK)
        assert off(layer, best, X) < off(layer, near, X)


def test_ranks_are_nested():
    gauge = score_gauge(moments(make(4, 2), inputs()), group=2, ridge=RIDGE)
    large, small = score_ranks(gauge, 5, group=2), score_ranks(gauge, 2, group=2)
    assert torch.equal(large.N[:, :2], small.N) and torch.equal(large.M[:, :2], small.M)
    assert torch.equal(large.N[0], large.N[1]) and not torch.equal(large.N[1], large.N[2])


def test_error_never_grows_with_rank():
    found = moments(make(4, 2), inputs())
    curve = score_curve(score_gauge(found, group=2, ridge=1e-2), found, found)
    assert list(curve.fit) == sorted(curve.fit, reverse=True)
    assert curve.fit[-1] == curve.held[-1] == curve.floor[-1] == 0


def test_without_ranks_all_keys_count_alike():
    layer, X = make(4, 2), inputs()
    none = cut(layer, X, 0)
    assert none.W_q.shape == (0, 16)
    torch.testing.assert_close(none.weights(X), torch.full((4, 40, 40), 1 / 40, dtype=torch.float64))


def test_directions_without_keys_or_queries_go_first():
    layer, X = make(2, 2), inputs()
    W_k = layer.W_k.reshape(2, 6, -1).clone()
    W_k[:, 4:] = W_k[:, :2]
    layer = replace(layer, W_k=W_k.flatten(0, 1))
    found = moments(layer, X)
    curve = score_curve(score_gauge(found, group=1, ridge=1e-9), found, found)
    assert curve.fit[4] < 1e-12 * curve.fit[0] < curve.fit[3]


def test_one_mean_for_all_sequences_overstates_the_error():
    """Softmax allows a mean to be taken off each sequence's keys: one for all leaves what their means differ by."""
    layer = make(2, 2)
    sequences = [inputs() + 0.4 * torch.randn(16, dtype=torch.float64) for _ in range(6)]
    X = torch.cat(sequences)
    found = moments(layer, X)
    within = torch.stack([moments(layer, Y).keys for Y in sequences]).mean(0)
    excess = torch.linalg.eigvalsh(found.keys - within)
    assert float(excess.min()) > -1e-12 < float(excess.max())
    gauge = score_gauge(found, group=1, ridge=RIDGE)
    exact = score_curve(gauge, found, replace(found, keys=within))
    assert all(held <= fit for fit, held in zip(exact.fit, exact.held, strict=True))


def test_the_nearest_product_is_the_one_there_is():
    A, B = (X @ X.mT for X in torch.randn(2, 5, 5, dtype=torch.float64))
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)[:, None, None]
    a, b = nearest_product(weights * A, B.expand(3, 5, 5))
    torch.testing.assert_close(torch.kron(a, b), torch.kron(3.5 * A, B))
    a, b = nearest_product(A[None], B[None])
    assert torch.equal(a, A) and torch.equal(b, B)


def test_no_product_is_nearer():
    A, B = (X @ X.mT for X in torch.randn(2, 3, 4, 4, dtype=torch.float64))
    whole = sum(torch.kron(x, y) for x, y in zip(A, B, strict=True))
    a, b = nearest_product(A, B)
    least = float((whole - torch.kron(a, b)).norm())
    rearranged = whole.reshape(4, 4, 4, 4).permute(0, 2, 1, 3).reshape(16, 16)  # Van Loan: products are rank one here
    assert least == pytest.approx(float(torch.linalg.svdvals(rearranged)[1:].norm()), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_balanced_coordinates_have_the_same_moments_on_both_sides(dtype):
    C_q, C_k = (X @ X.mH for X in torch.randn(2, 5, 7, dtype=dtype))
    N, M, σ = balanced(C_q, C_k, ridge=0.0)
    torch.testing.assert_close(N.mH @ M, torch.eye(5, dtype=dtype), **EXACT)
    for S, C in ((N, C_q), (M, C_k)):
        torch.testing.assert_close(S @ C @ S.mH, torch.diag(σ).to(dtype), rtol=1e-8, atol=1e-8)
    assert σ.tolist() == sorted(σ.tolist(), reverse=True)

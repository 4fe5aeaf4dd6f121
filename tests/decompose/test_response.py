"""What a change of scores does to the output, against attention with the scores really changed, a little."""

from dataclasses import replace

import pytest
import torch
from attention import Layer, causal, inputs, make
from torch import Tensor

from slimformer.decompose.response import Response, evened, response

N, STEP = 24, 1e-5


def responses(layer: Layer, X: Tensor, at: slice = slice(None), mask: Tensor | None = None) -> Response:
    q = (layer.scale * layer.queries(X))[:, at]
    return response(q, layer.keys(X), layer.values(X), layer.weights(X, mask)[:, at], layer.W_o)


def moved(layer: Layer, X: Tensor, head: int, maps: Tensor, mask: Tensor | None) -> Tensor:
    """dy/dε when the scores of one head are qᵀ(I + ε Δ)k, by central differences; rows are queries."""

    def output(ε: float) -> Tensor:
        q, k, v = layer.queries(X), layer.keys(X), layer.values(X)
        group = layer.heads // layer.kv
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        s = layer.scale * q @ k.mT
        s[head] += ε * layer.scale * q[head] @ maps @ k[head].mT
        s = s if mask is None else s.masked_fill(~mask, -torch.inf)
        return (s.softmax(-1) @ v).transpose(0, 1).flatten(1) @ layer.W_o.mT

    return (output(STEP) - output(-STEP)) / (2 * STEP)


@pytest.mark.parametrize("mask", [None, causal(N)], ids=["all", "causal"])
@pytest.mark.parametrize(("heads", "kv"), [(2, 2), (4, 2)])
def test_planes_tell_what_scaling_and_turning_does_to_the_output(heads, kv, mask):
    layer, X = make(heads, kv, rotary=True), inputs(n=N)
    A = responses(layer, X, mask=mask).effects
    for head in range(heads):
        a, b = torch.randn(2, 3, dtype=torch.float64)
        # Re((a − ib) s) of a plane, as a map between its coordinates of q and of k
        Δ = torch.cat([torch.cat([a.diag(), b.diag()], 1), torch.cat([-b.diag(), a.diag()], 1)])
        δy = moved(layer, X, head, Δ, mask)
        both = torch.cat([a, b])
        assert float(both @ A[head] @ both) == pytest.approx(float(δy.square().sum(1).mean()), rel=1e-5)


@pytest.mark.parametrize("rotary", [False, True], ids=["no rotation", "rotary"])
def test_queries_and_keys_tell_what_any_change_of_the_form_does(rotary):
    """Exactly so for one query, where independence of the query and its keys is no assumption."""
    layer, X = make(4, 2, rotary=rotary), inputs(n=N)
    for i in (3, N - 1):
        found = responses(layer, X, slice(i, i + 1), causal(N)).scores
        for head in range(4):
            Δ = torch.randn(6, 6, dtype=torch.float64)
            δy = moved(layer, X, head, Δ, causal(N))[i]
            predicted = torch.einsum("ij,ik,kl,lj->", Δ, found.queries[head], Δ, found.keys[head])
            assert float(predicted) == pytest.approx(float(δy.square().sum()), rel=1e-5)


def test_responses_add_up():
    layer, X = make(4, 2), inputs(n=N)
    whole, parts = responses(layer, X), responses(layer, X, slice(0, 7)) + responses(layer, X, slice(7, None))
    assert whole.count == parts.count == N
    torch.testing.assert_close(whole.scores.keys, parts.scores.keys)
    torch.testing.assert_close(whole.effects, parts.effects)


def test_what_all_keys_share_costs_nothing():
    layer, X = make(4, 2), inputs(n=N)
    other = replace(layer, b_k=layer.b_k + 1)
    torch.testing.assert_close(responses(other, X).keys, responses(layer, X).keys)


def test_values_that_say_the_same_cost_nothing():
    layer, X = make(4, 2), inputs(n=N)
    same = replace(layer, W_v=0 * layer.W_v)
    assert float(responses(same, X).keys.abs().max()) < 1e-20


def test_keys_behind_a_mask_do_not_count():
    layer, X = make(4, 2), inputs(n=N)
    hidden = torch.cat([X[:10], inputs(n=N - 10)])
    first = slice(0, 10)
    torch.testing.assert_close(
        responses(layer, X, first, causal(N)).keys, responses(layer, hidden, first, causal(N)).keys
    )


def test_single_precision_is_added_up_in_double():
    layer, X = make(4, 2), inputs(n=N)
    q, k, v, P = layer.scale * layer.queries(X), layer.keys(X), layer.values(X), layer.weights(X)
    single = response(q.float(), k.float(), v.float(), P.float(), layer.W_o.float())
    assert single.planes.dtype == torch.float64
    torch.testing.assert_close(single.planes, response(q, k, v, P, layer.W_o).planes, rtol=1e-4, atol=1e-4)


def test_evened_weights_are_weights_and_stay_behind_their_mask():
    layer, X = make(4, 2), inputs(n=N)
    P, seen = layer.weights(X, causal(N)), causal(N).expand(4, N, N)
    assert torch.equal(evened(P, seen, 0.0), P)
    some, all_alike = evened(P, seen), evened(P, seen, 1.0)
    for each in (some, all_alike):
        torch.testing.assert_close(each.sum(-1), torch.ones(4, N, dtype=P.dtype))
        assert float(each[~seen].abs().max()) == 0
    assert torch.equal(all_alike[0, 7, :8], torch.full((8,), 1 / 8, dtype=P.dtype))


def test_keys_beside_a_sink_count():
    """All attention on one key: to first order no score matters, and yet one that grows would."""
    layer, X = make(4, 2), inputs(n=N)
    q, k, v = layer.scale * layer.queries(X), layer.keys(X), layer.values(X)
    P = torch.zeros(4, N, N, dtype=q.dtype)
    P[:, :, 0] = 1
    assert float(response(q, k, v, P, layer.W_o).keys.abs().max()) < 1e-20
    assert float(response(q, k, v, evened(P, P >= 0), layer.W_o).keys.abs().max()) > 1e-6

"""Linformer attention: pads and the future change nothing, k = n is attention itself, matrices are as many as said."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from dealing import pairs
from slimformer.errors import ProjectionDoesNotFit, SequenceTooLong
from slimformer.lab.architectures.linformer_attention import (
    LinformerAttention,
    attend,
    head_groups,
    low_rank_attention,
)
from slimformer.lab.architectures.linformer_config import LinformerConfig
from slimformer.lab.architectures.linformer_projections import (
    KINDS,
    SHARING,
    TRAINED,
    WHOLE,
    Compression,
    Rows,
    make_projection,
)

WIDTH, HEADS, LENGTH = 32, 4, 48
EITHER = (False, True)
CAUSAL = [kind for kind in KINDS if kind != "svd"]
COMPRESSED = [kind for kind in KINDS if kind not in WHOLE]


def configured(n=LENGTH, k=12, **settings):
    sizes = [k] if isinstance(k, list) else k
    return LinformerConfig(
        hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS, max_position_embeddings=n, k=sizes,
        **{"attention_probs_dropout_prob": 0.0, **settings},
    )  # fmt: skip


def made(kind="linear", sharing="headwise", k=12, **settings):
    if kind not in CAUSAL:
        settings["is_causal"] = False
    layer = LinformerAttention(configured(k=k, projection=kind, sharing=sharing, **settings))
    for linear in (layer.query, layer.key, layer.value):  # scores that differ, so that a mistake shows
        torch.nn.init.normal_(linear.weight, std=0.4)
        torch.nn.init.normal_(linear.bias, std=0.4)
    return layer.eval()


def shared_by(layer):
    """The projection of a whole model, where the layer has none of its own."""
    return None if layer.projections or not layer.groups else make_projection(layer.groups[0][1])


def right_padded(x, pads):
    junk = 5 * torch.randn(x.shape[0], pads, WIDTH)
    mask = torch.ones(x.shape[0], x.shape[1] + pads, dtype=torch.bool)
    mask[:, x.shape[1] :] = False
    return torch.cat([x, junk], 1), mask


def with_identity(layer):
    """E = F = I."""
    for projection in layer.projections:
        for weight in projection.parameters():
            eye = torch.eye(*weight.shape[1:]).expand_as(weight)
            weight.data = torch.where(eye > 0, 0.0, -200.0) if projection.how.row_stochastic else eye.clone()
    return layer


def standard(layer, x, mask=None, causal=False):
    q, k, v = (layer._split(linear(x)) for linear in (layer.query, layer.key, layer.value))
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    seen = (seen.tril() if causal else seen)[None, None]
    seen = seen if mask is None else seen & mask[:, None, None]
    return layer.out(F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("kind", "sharing", "row_stochastic", "causal"), pairs(CAUSAL, SHARING, EITHER, EITHER))
def test_pads_change_nothing(kind, sharing, row_stochastic, causal):
    layer = made(kind, sharing, row_stochastic=row_stochastic, is_causal=causal, second_order=kind == "cluster")
    shared, x = shared_by(layer), torch.randn(2, 37, WIDTH)
    padded, mask = right_padded(x, 9)
    found = layer(padded, mask, shared)
    assert found.isfinite().all()
    torch.testing.assert_close(found[:, :37], layer(x, None, shared), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", CAUSAL)
def test_masked_tokens_inside_a_sequence_change_nothing(kind):
    """What a masked token says is not heard, wherever it stands."""
    layer = made(kind, row_stochastic=True)
    x, mask = torch.randn(2, 40, WIDTH), torch.rand(2, 40) > 0.3
    other = torch.where(mask[..., None], x, 7 * torch.randn_like(x))
    torch.testing.assert_close(layer(x, mask)[mask], layer(other, mask)[mask], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("kind", "sharing", "row_stochastic"), pairs(CAUSAL, SHARING, EITHER))
def test_the_future_changes_nothing(kind, sharing, row_stochastic):
    layer = made(
        kind, sharing, row_stochastic=row_stochastic, is_causal=True, block_size=8 if kind != "exact" else None
    )
    shared, x = shared_by(layer), torch.randn(1, 45, WIDTH)
    whole = layer(x, None, shared)
    for now in (0, 7, 8, 20, 23, 24, 44):
        changed = x.clone()
        changed[:, now + 1 :] = 9 * torch.randn_like(changed[:, now + 1 :])
        torch.testing.assert_close(
            layer(changed, None, shared)[:, : now + 1], whole[:, : now + 1], atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("kind", COMPRESSED)
def test_the_whole_past_is_heard(kind):
    """The last query depends on every token before it: the window and the rows leave no gap."""
    layer = made(kind, row_stochastic=kind != "max", is_causal=True, block_size=8)
    x = torch.randn(1, 45, WIDTH, requires_grad=True)
    layer(x)[0, -1].square().sum().backward()
    heard = x.grad[0].abs().sum(-1) > 0
    assert heard.all() if kind != "max" else heard.sum() > 24


@pytest.mark.parametrize("row_stochastic", [False, True])
@pytest.mark.parametrize("kind", COMPRESSED)
def test_as_many_rows_as_tokens_are_attention_itself(kind, row_stochastic):
    layer = with_identity(made(kind, k=LENGTH, row_stochastic=row_stochastic))
    if kind == "conv" and not row_stochastic:
        assert all((weight == 1).all() for weight in layer.projections.parameters())
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(layer(x), standard(layer, x), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_as_many_rows_as_tokens_are_attention_itself_with_pads(kind):
    layer = with_identity(made(kind, k=LENGTH, row_stochastic=True))
    x, mask = right_padded(torch.randn(2, 31, WIDTH), 10)
    torch.testing.assert_close(layer(x, mask)[:, :31], standard(layer, x, mask)[:, :31], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_as_many_rows_as_tokens_are_causal_attention_itself(kind):
    layer = with_identity(made(kind, k=LENGTH, row_stochastic=True, is_causal=True, block_size=8))
    for n in (5, 8, 16, 17, 41, LENGTH):
        x = torch.randn(2, n, WIDTH)
        torch.testing.assert_close(layer(x), standard(layer, x, causal=True), atol=3e-6, rtol=1e-5)


def test_clusters_of_one_are_exact_with_second_order():
    layer = made("cluster", k=20, second_order=True)
    x = torch.randn(3, 20, WIDTH)
    torch.testing.assert_close(layer(x), standard(layer, x), atol=2e-6, rtol=1e-5)


def test_clusters_of_equal_keys_are_exact():
    """Six different tokens eight times over: any clustering that keeps them apart has nothing to lose."""
    layer = made("cluster", k=6)
    x = torch.randn(1, 6, WIDTH).repeat_interleave(8, 1)
    torch.testing.assert_close(layer(x), standard(layer, x), atol=2e-6, rtol=1e-5)


def test_second_order_brings_clusters_nearer_to_attention():
    plain, second = made("cluster", k=8), made("cluster", k=8, second_order=True)
    second.load_state_dict(plain.state_dict())
    x = 0.5 * torch.randn(8, LENGTH, WIDTH)
    wanted = standard(plain, x)
    assert (second(x) - wanted).norm() < (plain(x) - wanted).norm()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", CAUSAL)
def test_lengths_other_than_the_longest(kind, causal):
    """A shorter input meets the first columns of E: as if the rest were masked."""
    layer = made(kind, is_causal=causal, row_stochastic=True)
    for n in (1, 2, 11, 47):
        x = torch.randn(2, n, WIDTH)
        padded, mask = right_padded(x, LENGTH - n)
        torch.testing.assert_close(layer(x), layer(padded, mask)[:, :n], atol=2e-6, rtol=1e-5)


def test_longer_ones_are_refused():
    with pytest.raises(SequenceTooLong, match="49 tokens"):
        made()(torch.randn(1, 49, WIDTH))


@pytest.mark.parametrize("sharing", ["headwise", "key-value"])
@pytest.mark.parametrize("row_stochastic", [False, True])
@pytest.mark.parametrize("kind", ["linear", "mean", "conv"])
def test_compressing_the_stream_or_the_keys_is_the_same(kind, row_stochastic, sharing):
    layer = made(kind, sharing, row_stochastic=row_stochastic)
    x, mask = right_padded(torch.randn(2, 30, WIDTH), 6)
    q, k, v = (layer._split(linear(x)) for linear in (layer.query, layer.key, layer.value))
    late = layer.out(attend(q, layer.projections[0](k, v, mask)).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, mask), late, atol=1e-5, rtol=1e-4)


def test_rows_are_means_that_count_for_what_they_hold():
    """Row-stochastic E by its definition: softmax over valid tokens, and the log of the normaliser beside it."""
    how = Compression("linear", 5, 20, HEADS, "none", row_stochastic=True)
    projection, mask = make_projection(how), torch.rand(3, 20) > 0.4
    x = torch.randn(3, HEADS, 20, 8)
    logits = projection.key_weight[None].masked_fill(~mask[:, None, None], -torch.inf)
    found = projection.pool(x, mask, "keys")
    torch.testing.assert_close(found.rows, logits.softmax(-1) @ x)
    torch.testing.assert_close(found.log_mass, logits.logsumexp(-1))


@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value", "layerwise"])
def test_matrices_are_as_many_as_said(sharing):
    count = {"none": 2 * HEADS, "headwise": 2, "key-value": 1, "layerwise": 0}[sharing]
    layer = made("linear", sharing)
    assert sum(weight.numel() for weight in layer.projections.parameters()) == count * LENGTH * 12
    for kind in ("mean", "max", "cluster"):
        assert not list(made(kind, sharing).projections.parameters())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", COMPRESSED)
def test_every_head_may_have_its_own_k(kind, causal):
    sizes = [12, 4, 12, 24]
    layer = made(kind, "none", k=sizes, is_causal=causal, row_stochastic=True, block_size=24 if causal else None)
    assert head_groups(sizes) == {12: [0, 2], 4: [1], 24: [3]}
    if kind == "linear":
        assert sum(weight.numel() for weight in layer.projections.parameters()) == 2 * sum(sizes) * LENGTH
    x = torch.randn(2, LENGTH, WIDTH)
    context = layer.out.weight.new_zeros(2, HEADS, LENGTH, WIDTH // HEADS)
    q, k, v = (layer._split(linear(x)) for linear in (layer.query, layer.key, layer.value))
    for (heads, _), projection in zip(layer.groups, layer.projections, strict=True):
        for place, h in enumerate(heads):
            part = layer._one_k(q[:, heads], k[:, heads], v[:, heads], None, projection)
            context[:, h] = part[:, place]
    torch.testing.assert_close(layer(x), layer.out(context.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(("kind", "row_stochastic", "causal"), pairs(KINDS, EITHER, EITHER))
def test_gradients_are_finite_with_pads_and_dropout(kind, row_stochastic, causal):
    layer = made(
        kind, "none", row_stochastic=row_stochastic, is_causal=causal, attention_probs_dropout_prob=0.2
    ).train()
    x, mask = torch.randn(3, 40, WIDTH, requires_grad=True), torch.rand(3, 40) > 0.3
    mask[0] = False  # a sequence of pads alone
    layer(x, mask).square().mean().backward()
    assert x.grad.isfinite().all()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in layer.parameters())
    if kind in TRAINED:
        assert all(weight.grad.abs().sum() > 0 for weight in layer.projections.parameters())


def test_dropout_works_in_training_only():
    layer, x = made(attention_probs_dropout_prob=0.5), torch.randn(1, 20, WIDTH)
    torch.testing.assert_close(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


@functools.cache
def can_multiply(dtype):
    """Tried in a process of its own: what the processor says of itself does not settle it, and a wrong instruction ends
    the whole process."""
    tried = f"import torch; x = torch.ones(64, 64, dtype={dtype}); torch.nn.functional.linear(x, x, x[0])"
    return subprocess.run([sys.executable, "-c", tried], capture_output=True).returncode == 0


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", CAUSAL)  # where σ_k is near σ_k+1, U_k follows the rounding
def test_mixed_precision_is_near(kind, causal, dtype):
    if dtype == torch.bfloat16 and not can_multiply(dtype):
        pytest.skip(f"products of {dtype} end the process on this machine")
    layer = made(kind, row_stochastic=True, is_causal=causal)
    x, mask = right_padded(torch.randn(2, 30, WIDTH), 9)
    with torch.autocast("cpu", dtype=dtype):
        found = layer(x, mask)
    assert found.dtype == dtype
    wanted = layer(x, mask)
    assert (found.float() - wanted)[:, :30].norm() < 0.05 * wanted[:, :30].norm()


def test_no_mask_of_all_pairs_is_made():
    """The largest tensor of the causal mode grows with n, not with n²."""
    from slimformer.evaluate.memory import peak_bytes

    peaks = []
    for n in (512, 1024, 2048):
        layer = LinformerAttention(configured(n, 16, row_stochastic=True, is_causal=True, block_size=16)).eval()
        peaks.append(peak_bytes(lambda layer=layer, n=n: layer(torch.randn(1, n, WIDTH))))
    assert peaks[2] - peaks[1] < 2.2 * (peaks[1] - peaks[0])


def test_what_cannot_be_is_refused_in_words():
    for settings, said in (
        ({"kind": "nystrom"}, "no projection 'nystrom'"),
        ({"sharing": "all"}, "no sharing 'all'"),
        ({"k": [4, 4, 8, 8]}, "one matrix for all heads"),
        ({"k": [4, 8], "sharing": "none"}, "2 values of k for 4 heads"),
        ({"second_order": True}, "needs clusters"),
        ({"kind": "mean", "is_causal": True, "block_size": 6}, "do not hold whole segments of 4 tokens"),
    ):
        with pytest.raises(ProjectionDoesNotFit, match=said):
            made(**settings)
    with pytest.raises(ProjectionDoesNotFit, match="48 positions"):
        make_projection(Compression("linear", 49, LENGTH, HEADS))
    with pytest.raises(ProjectionDoesNotFit, match="has to come with the input"):
        made(sharing="layerwise")(torch.randn(1, 4, WIDTH))


def test_masses_with_and_without_gradient_take_different_roads_to_one_place():
    q, k, v, mass = torch.randn(2, 4, 9, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5)
    one, other = attend(q, Rows(k, v, mass)), attend(q, Rows(k, v, mass.requires_grad_()))
    torch.testing.assert_close(one, other)


def test_the_decomposition_of_attention_is_the_best_of_its_rank():
    """Eq. 6: whole at k = n, ‖P − P_k‖ that of the singular values left out, and the gradient that of P_k V."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 12, 4, dtype=torch.float64) for _ in range(3))
    weights = (query @ key.mT / 2).softmax(-1)
    assert torch.allclose(low_rank_attention(query, key, value, None, [12, 12]), weights @ value)
    identity = torch.eye(12, dtype=torch.float64).expand(2, 2, 12, 12)
    near = low_rank_attention(query, key, identity, None, [3, 5])
    left_out = torch.linalg.svdvals(weights).square()
    for head, k in enumerate((3, 5)):
        error = (weights - near)[:, head].square().sum((1, 2))
        assert torch.allclose(error, left_out[:, head, k:].sum(-1))
    layer, exact = made("svd", k=LENGTH), made("exact")
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    grads = [torch.autograd.grad(each(x).square().sum(), x)[0] for each in (layer, exact)]
    assert torch.allclose(*grads, rtol=1e-3, atol=1e-4)


def test_pads_take_no_rank_from_the_decomposition():
    layer = made("svd", k=[4, 6, 8, 3]).double()
    longer, mask = right_padded(torch.randn(2, 20, WIDTH), 9)
    found = layer(longer.double(), mask)[:, :20]
    assert torch.allclose(found, layer(longer[:, :20].double()), atol=1e-9)
    with pytest.raises(ProjectionDoesNotFit, match="no decoder"):
        configured(projection="svd", is_causal=True)

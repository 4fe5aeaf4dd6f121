"""Language-model heads in closed form: what they start from, what they promise, what stays tied."""

from __future__ import annotations

import pytest
import torch

from families import tiny, tiny_batches
from slimformer.calibrate.text import Batch
from slimformer.errors import HeadDoesNotFit
from slimformer.evaluate.perplexity import perplexity
from slimformer.heads import adapt as lm_adapt
from slimformer.heads.asked import ADAPTATIONS
from slimformer.heads.lm_head import (
    TokenMoments,
    bohning_step,
    constant,
    discriminant_head,
    least_squares_head,
    mean_loss,
)


def stream(n=400, d=6, V=9, *, seed=0):
    """States and next tokens that follow a softmax with known weights."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(V, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    H = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return H, torch.multinomial((H @ W.mT).softmax(1), 1, generator=generator)[:, 0], W


def test_every_sweep_lowers_the_penalised_loss():
    H, t, _ = stream()
    W0 = torch.zeros(9, 6, dtype=torch.float64)
    moments = TokenMoments.of(H, t, 9)
    for penalty in (1e-4, 0.1):
        ridge = penalty * float(moments.gram.diagonal().mean())
        W, before = W0, float("inf")
        for _ in range(8):
            loss = len(H) * mean_loss(W, H, t) + ridge / 2 * float((W - W0).square().sum())
            assert loss <= before + 1e-9
            before = loss
            W = bohning_step(W, W0, moments.gram, lambda: [(H[:150], t[:150]), (H[150:], t[150:])], penalty)
    assert mean_loss(W, H, t) < mean_loss(W0, H, t) - 0.1


def test_sweeps_end_where_the_gradient_is_zero():
    H, t, _ = stream(200, 4, 5)
    W0, gram = torch.zeros(5, 4, dtype=torch.float64), TokenMoments.of(H, t, 5).gram
    W = W0
    for _ in range(300):
        W = bohning_step(W, W0, gram, lambda: [(H, t)], 0.01)
    ridge = 0.01 * float(gram.diagonal().mean())
    Y = torch.nn.functional.one_hot(t, 5).double()
    gradient = (Y - (H @ W.mT).softmax(1)).mT @ H - ridge * W
    assert float(gradient.abs().max()) < 1e-6


def test_without_data_the_discriminant_is_the_pretrained_head():
    H, t, W0 = stream()
    moments = TokenMoments.of(H, t, 9)
    nothing = TokenMoments(moments.gram, torch.zeros(9, dtype=torch.float64), 0 * moments.sums)
    W, b = discriminant_head(nothing, W0, tau=1.0, prior=1.0)
    torch.testing.assert_close(W, W0)
    torch.testing.assert_close(b - b[0], torch.zeros_like(b), rtol=0, atol=1e-9)
    far, _ = discriminant_head(moments, W0, tau=1e12, prior=1e12)
    torch.testing.assert_close(far, W0, rtol=1e-6, atol=1e-6)


def test_the_discriminant_is_lda_where_the_pretrained_head_has_no_say():
    from slimformer.heads.analytic import AnalyticHead

    H, t, W0 = stream()
    W, b = discriminant_head(TokenMoments.of(H, t, 9), W0, tau=1e-9, prior=1e-9, shrinkage=0.1)
    head = AnalyticHead(shrinkage=0.1, standardize=False).fit(H, t)
    found = H @ W.mT + b - H @ torch.as_tensor(head.coef_).mT - torch.as_tensor(head.intercept_)
    assert float((found - found.mean(1, keepdim=True)).abs().max()) < 1e-5  # the same but for what classes share


def test_least_squares_solves_its_equations_and_moments_add():
    H, t, _ = stream()
    whole = TokenMoments.of(H, t, 9)
    parts = TokenMoments.of(H[:100], t[:100], 9) + TokenMoments.of(H[100:], t[100:], 9)
    torch.testing.assert_close(parts.sums, whole.sums)
    torch.testing.assert_close(parts.gram, whole.gram)
    W = least_squares_head(whole, 1e-12)
    Y = torch.nn.functional.one_hot(t, 9).double()
    torch.testing.assert_close(W, torch.linalg.lstsq(H, Y).solution.mT, rtol=1e-6, atol=1e-8)


def test_a_bias_is_written_into_states_that_know_a_constant():
    H = torch.cat([torch.randn(50, 4, dtype=torch.float64), torch.full((50, 1), 2.0, dtype=torch.float64)], 1)
    torch.testing.assert_close(
        H @ constant(H.mT @ H, H.sum(0)), torch.ones(50, dtype=torch.float64), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("method", ADAPTATIONS)
@pytest.mark.parametrize("tied", [False, True])
def test_a_head_adapts_to_text_it_has_not_seen(method, tied, monkeypatch):
    monkeypatch.setattr(lm_adapt, "SWEEPS", 2)
    model = tiny("llama", tie_word_embeddings=tied)
    kinds = torch.randint(5, 64, (40, 16), generator=torch.Generator().manual_seed(0)) % 7 + 5  # seven words only
    batches = [Batch({"input_ids": part, "attention_mask": torch.ones_like(part)}, None) for part in kinds.split(8)]
    fit, select = (lm_adapt.states_of(model, part) for part in (batches[:3], batches[3:4]))
    found = lm_adapt.adapt_head(model, fit, select, method)
    adapted, warning = lm_adapt.with_head(model, found.W)
    assert perplexity(adapted, batches[4:]).ppl < perplexity(model, batches[4:]).ppl
    assert (warning is not None) == tied
    assert adapted.get_input_embeddings().weight.equal(model.get_input_embeddings().weight)
    measured = lm_adapt.before_and_after(model, adapted, {"domain": batches[4:], "other": tiny_batches(model, 1)})
    assert measured["domain"]["nats"] < 0
    with torch.no_grad():
        states = lm_adapt.states_of(model, batches[4:])
    assert mean_loss(found.W, states.H, states.t) == pytest.approx(perplexity(adapted, batches[4:]).nll, rel=1e-4)


def test_models_without_such_a_head_are_refused():
    with pytest.raises(HeadDoesNotFit):
        lm_adapt.adapt_head(tiny("bert", "bare"), None, None)

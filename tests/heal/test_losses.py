"""Losses are zero for twins and nowhere else, do not see padding, and are those that reports call so."""

import pytest
import torch

from families import HEADS, tiny, tiny_batches
from slimformer.heal.losses import distillation_loss
from slimformer.heal.remembered import Remembered, remembered_loss
from slimformer.models.outputs import harm


@pytest.mark.parametrize(("model_type", "head"), HEADS)
def test_a_loss_is_zero_for_twins_and_pulls_others_towards_the_teacher(model_type, head):
    teacher, student = tiny(model_type, head), tiny(model_type, head, seed=1)
    (batch,) = tiny_batches(teacher, 1)
    wanted = teacher(**batch.inputs)
    same, count = distillation_loss(wanted, wanted, batch.mask)
    assert float(same.detach()) == pytest.approx(0, abs=1e-5) and count > 0
    loss, _ = distillation_loss(wanted, student(**batch.inputs), batch.mask)
    assert float(loss.detach()) > 1e-3
    loss.backward()
    assert any(float(p.grad.abs().sum()) > 0 for p in student.parameters() if p.grad is not None)


def test_it_is_the_divergence_of_reports():
    teacher, student = tiny("bert", "answer"), tiny("bert", "answer", seed=1)
    (batch,) = tiny_batches(teacher, 1)
    with torch.no_grad():
        outputs = teacher(**batch.inputs), student(**batch.inputs)
    loss, count = distillation_loss(*outputs, batch.mask)
    found, n = harm(*outputs, batch.mask)
    assert (float(loss), count) == (pytest.approx(found, rel=1e-4), n)


def test_padding_counts_for_nothing():
    teacher, student = tiny("bert", "bare"), tiny("bert", "bare", seed=1)
    (batch,) = tiny_batches(teacher, 1)
    with torch.no_grad():
        x, y = teacher(**batch.inputs), student(**batch.inputs)
        loss, _ = distillation_loss(x, y, batch.mask)
        y.last_hidden_state[~batch.mask] = 100.0
        assert torch.equal(loss, distillation_loss(x, y, batch.mask)[0])


def test_likely_outcomes_and_the_rest_are_the_whole_divergence_where_they_are_all_and_else_less(tmp_path):
    teacher, student = tiny("llama"), tiny("llama", seed=1)
    (batch,) = tiny_batches(teacher, 1)
    with torch.no_grad():
        wanted, given = teacher(**batch.inputs), student(**batch.inputs)
    whole = distillation_loss(wanted, given, batch.mask)[0]
    for k in (4, 10_000):
        known = Remembered(tmp_path / str(k), k).of(0, teacher, dict(batch.inputs))
        part = remembered_loss(known, given, batch.mask)
        assert 0 < float(part) <= float(whole) * (1 + 1e-3)
        assert k == 4 or float(part) == pytest.approx(float(whole), rel=2e-3)


def test_the_gradient_of_the_coarse_divergence_is_that_of_its_formula(tmp_path):
    teacher, student = tiny("llama"), tiny("llama", seed=1)
    (batch,) = tiny_batches(teacher, 1)
    given = student(**batch.inputs)
    given.logits = given.logits.detach().requires_grad_()
    log_p, outcome = known = Remembered(tmp_path, 5).of(0, teacher, dict(batch.inputs))
    (found,) = torch.autograd.grad(remembered_loss(known, given, batch.mask), given.logits)
    real = torch.ones(given.logits.shape[:2], dtype=torch.bool) if batch.mask is None else batch.mask
    log_q = given.logits[real].log_softmax(-1).gather(1, outcome)
    p, rest = log_p.exp(), 1 - log_p.exp().sum(1)
    coarse = (p * (log_p - log_q)).sum(1) + rest * (rest.log() - (1 - log_q.exp().sum(1)).log())
    (wanted,) = torch.autograd.grad(coarse.mean(), given.logits)
    assert torch.allclose(found, wanted, atol=1e-7)

"""Losses are zero for twins and nowhere else, do not see padding, and are those that reports call so."""

import pytest
import torch

from families import HEADS, tiny, tiny_batches
from slimformer.heal.losses import distillation_loss
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

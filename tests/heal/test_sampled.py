"""Some words of a vocabulary stand for all: equal to them where all are compared, near them on average, and refused
where a model does more with its scores than to give them."""

import pytest
import torch

from families import tiny, tiny_batches, tiny_plan
from slimformer.heal.heal import Student, Text, heal
from slimformer.heal.held_out import HeldOut
from slimformer.heal.losses import distillation_loss
from slimformer.heal.sampled import Words, comparing, words_of
from slimformer.heal.settings import HealSettings
from slimformer.heal.work import Work


def pair(model_type="llama", head="causal"):
    return tiny(model_type, head), tiny(model_type, head, seed=1)


def gradient(teacher, student, batch, words, seed):
    """The loss by some words and its gradient at the last norm; by all words where there are none."""
    norm = student.model.norm.weight
    ids, more = (torch.arange(64), None) if words is None else words.some(seed)
    with comparing((teacher, student), ids):
        loss, _ = distillation_loss(teacher(**batch.inputs), student(**batch.inputs), batch.mask, more)
    return float(loss.detach()), torch.autograd.grad(loss, norm)[0]


def test_where_every_word_is_drawn_it_is_the_divergence():
    teacher, student = pair()
    (batch,) = tiny_batches(teacher, 1)
    whole, slope = gradient(teacher, student, batch, None, 0)
    loss, drawn = gradient(teacher, student, batch, Words(torch.randperm(64), 48, 16), 3)
    assert loss == pytest.approx(whole, rel=1e-4) and torch.allclose(drawn, slope, rtol=1e-3, atol=1e-6)


def test_draws_point_where_the_whole_does_on_average():
    teacher, student = pair()
    (batch,) = tiny_batches(teacher, 1)
    words = words_of(teacher, student, [batch], 32)
    _, slope = gradient(teacher, student, batch, None, 0)
    mean = sum(gradient(teacher, student, batch, words, seed)[1] for seed in range(50)) / 50
    assert float(torch.cosine_similarity(mean, slope, 0)) > 0.95


def test_heads_are_as_they_were_and_draws_follow_the_seed():
    teacher, student = pair()
    (batch,) = tiny_batches(teacher, 1)
    words = words_of(teacher, student, [batch], 16)
    one, other = words.some(1)[0], words.some(2)[0]
    assert torch.equal(one, words.some(1)[0]) and not torch.equal(one, other)
    assert torch.equal(one[:12], other[:12]) and len(one.unique()) == 16
    every = student(**batch.inputs).logits
    with pytest.raises(KeyError), comparing((teacher, student), one):
        assert torch.allclose(student(**batch.inputs).logits, every[..., one], atol=1e-6)
        raise KeyError
    assert torch.equal(student(**batch.inputs).logits, every)


@pytest.mark.parametrize(("model_type", "head"), [("bert", "bare"), ("bert", "answer"), ("vit", "classify")])
def test_what_has_no_words_has_none_to_compare_by(model_type, head):
    teacher, student = pair(model_type, head)
    assert words_of(teacher, student, tiny_batches(teacher, 1), 2) is None


@pytest.mark.parametrize(("model_type", "whole"), [("whisper", False), ("bart", True)])
def test_of_models_that_write_the_words_written_are_compared_unless_something_is_added_to_their_scores(
    model_type, whole
):
    teacher, student = pair(model_type, "write")
    assert (words_of(teacher, student, tiny_batches(teacher, 1), 16) is None) == whole


def test_all_are_compared_where_that_costs_little_or_scores_are_changed_after_the_head():
    teacher, student = pair()
    batches = tiny_batches(teacher, 1)
    assert words_of(teacher, student, batches, 33) is None
    student.register_forward_hook(lambda _module, _inputs, out: out.__setitem__("logits", out.logits.softmax(-1)))
    assert words_of(teacher, student, batches, 16) is None


def test_a_model_learns_from_some_words(tmp_path):
    dense = tiny("llama")
    each = Student(tiny_plan(dense, 0.5)[1], dense, (1, 1, 1))
    text = Text(tiny_batches(dense, 4), HeldOut({"own": tiny_batches(dense, 2, seed=9)}))
    how = HealSettings(tokens=6000, phases="global", rate=1e-3, words=24)
    done = heal(each, text, how, Work(tmp_path))
    assert done.kept and done.after["own"] < done.before["own"]

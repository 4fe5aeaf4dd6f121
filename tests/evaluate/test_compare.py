"""Every kind of model is measured by what it is for, on all of the data or with a word on how much of it."""

import math
from dataclasses import replace

import pytest
import torch

from families import CLASSES, HEADS, tiny, tiny_batches, tiny_compressed
from slimformer.evaluate import compare as comparing
from slimformer.evaluate.compare import compare
from slimformer.evaluate.fidelity import logit_divergence
from slimformer.evaluate.intervals import Interval
from slimformer.evaluate.language import language_pair
from slimformer.evaluate.perplexity import perplexity

DIVERGENCE = ["kl", "agreement"]
NAMES = {
    "causal": ["perplexity", "nats per token", *DIVERGENCE],
    "masked": DIVERGENCE,
    "classify": ["accuracy", *DIVERGENCE],
    "answer": DIVERGENCE,
    "bare": ["cosine of pooled states", "cosine of token states", "cka", "neighbour overlap"],
}


def labelled(model, n=3):
    generator = torch.Generator().manual_seed(0)
    return [
        replace(batch, labels=torch.randint(CLASSES, (8,), generator=generator)) for batch in tiny_batches(model, n)
    ]


def by_name(metrics):
    return {metric.name: metric for metric in metrics}


@pytest.mark.parametrize(("model_type", "head"), HEADS)
def test_a_model_is_measured_by_what_it_is_for(model_type, head):
    dense = tiny(model_type, head)
    small, batches = tiny_compressed(dense), labelled(dense)
    found = compare(dense, small, batches)
    assert [metric.name for metric in found] == NAMES[head]
    assert [metric.small for metric in compare(dense, dense, batches)] == pytest.approx(
        [metric.dense for metric in found]
    )


def test_only_whole_vocabularies_are_compared_on_a_part_of_the_data(monkeypatch):
    """A classifier has few outputs, so there is no reason to leave out examples."""
    monkeypatch.setattr(comparing, "KL_TOKENS", 100)
    for head in ("masked", "classify"):
        dense = tiny("bert", head)
        small, batches = tiny_compressed(dense), labelled(dense)
        part = batches if head == "classify" else batches[:2] if batches[0].tokens < 100 else batches[:1]
        kl = by_name(compare(dense, small, batches))["kl"]
        assert kl.small == pytest.approx(logit_divergence(dense, small, part).kl)
        assert kl.on == (None if head == "classify" else sum(batch.tokens for batch in part))


def test_language_models_are_compared_in_one_pass_and_on_all_documents(monkeypatch):
    """Perplexities are those of each model alone; KL at some positions of every window, not at all of a few."""
    dense = tiny("llama")
    small, batches = tiny_compressed(dense), labelled(dense)
    before, after, whole = language_pair(dense, small, batches)
    assert (before, after) == (perplexity(dense, batches), perplexity(small, batches))
    assert whole.positions == before.tokens
    alone = [language_pair(dense, small, batches, stride=4)[2], language_pair(dense, small, batches[:1])[2]]
    assert len(alone[0].kl_per_document) == len(whole.kl_per_document) > len(alone[1].kl_per_document)
    assert alone[0].positions == whole.positions // 4
    monkeypatch.setattr(comparing, "KL_TOKENS", sum(batch.tokens for batch in batches) // 4)
    kl = by_name(compare(dense, small, batches))["kl"]
    assert (kl.small, kl.on, kl.documents) == (alone[0].kl, alone[0].positions, len(whole.kl_per_document))


def test_a_regression_has_no_accuracy_whatever_its_labels():
    dense = tiny("bert", "classify", num_labels=1)
    batches = [replace(batch, labels=torch.zeros(8, dtype=torch.long)) for batch in tiny_batches(dense)]
    (metric,) = compare(dense, tiny_compressed(dense), batches)
    assert metric.name == "relative squared change of the output"
    assert metric.small > 0


def test_labels_a_model_does_not_know_are_no_mistakes_of_it():
    dense = tiny("bert", "classify")
    batches = [replace(batch, labels=torch.full((8,), -1)) for batch in tiny_batches(dense)]
    assert [metric.name for metric in compare(dense, tiny_compressed(dense), batches)] == DIVERGENCE


@pytest.mark.parametrize("head", ["bare", "causal"])
def test_intervals_over_few_documents_stay_within_what_is_possible(head, monkeypatch):
    """Two documents, one far worse than the other: the factor of a positive interval knows no bound."""
    monkeypatch.setattr(comparing, "positive_interval", lambda values, weights: Interval(values[0], -0.1, 16.0, 0.95))
    monkeypatch.setattr(comparing, "smooth_interval", lambda *_, **__: Interval(0.1, -0.1, 16.0, 0.95))
    dense = tiny("bert" if head == "bare" else "llama", head)
    for metric in compare(dense, tiny_compressed(dense), tiny_batches(dense, 2)):
        if metric.name.startswith("cosine"):
            assert (metric.low, metric.high) == (-2.0, 0.0)
        elif metric.name == "cka":
            assert (metric.low, metric.high) == (-1.0, 0.0)
        elif metric.name == "kl":
            assert metric.low == 0.0 and metric.high == pytest.approx(math.log(dense.config.vocab_size))


def test_perplexity_and_nats_say_the_same_of_two_documents(monkeypatch):
    """Perplexity is e to the nats: bounds of its gap follow from theirs, so that both have the same sign."""
    dense = tiny("llama")
    monkeypatch.setattr(comparing, "paired_difference", lambda *_, **__: Interval(0.5, 0.01, 1.3, 0.95))
    metrics = by_name(compare(dense, tiny_compressed(dense), labelled(dense)))
    ppl, nats = metrics["perplexity"], metrics["nats per token"]
    assert (nats.low, nats.high) == (0.01, 1.3)
    assert ppl.low == pytest.approx(ppl.dense * (math.exp(nats.low) - 1))
    assert ppl.high == pytest.approx(ppl.dense * (math.exp(nats.high) - 1))

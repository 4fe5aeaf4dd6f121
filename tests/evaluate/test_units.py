"""The unit of an error is the document, however documents were cut into windows and rows."""

import pytest
import torch

from families import tiny, tiny_batches, tiny_compressed, tiny_tokenizer
from slimformer.calibrate.documents import Document
from slimformer.calibrate.text import SEPARATOR, in_turn, packed_batches, padded_batches
from slimformer.evaluate.compare import compare
from slimformer.evaluate.fidelity import logit_divergence, state_similarity
from slimformer.evaluate.perplexity import perplexity

TEXTS = [" ".join(f"w{(7 * i + 3 * j) % 60}" for j in range(5 + 9 * i)) for i in range(8)]
DOCUMENTS = [Document(text) for text in TEXTS]


def windows(**how):
    return packed_batches(DOCUMENTS, tiny_tokenizer(), seq_len=16, batch_size=4, **how)


def test_windows_know_the_document_of_every_token_and_separators_are_of_none():
    tokenizer = tiny_tokenizer()
    found = windows()
    ids = torch.cat([batch.inputs["input_ids"].flatten() for batch in found])
    numbers = torch.cat([batch.documents.flatten() for batch in found])
    for number, text in enumerate(TEXTS[:-1]):
        assert ids[numbers == number].tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert set(ids[numbers == SEPARATOR].tolist()) <= set(tokenizer.all_special_ids)


def test_nats_of_a_document_are_the_same_however_windows_are_batched_and_no_separator_is_predicted():
    model = tiny("llama")
    plain, dealt = perplexity(model, windows()), perplexity(model, in_turn(windows()))
    assert dealt.tokens_per_document == plain.tokens_per_document
    assert dealt.nll_per_document == pytest.approx(plain.nll_per_document, rel=1e-5)
    weighted = zip(plain.nll_per_document, plain.tokens_per_document, strict=True)
    assert sum(nll * n for nll, n in weighted) / plain.tokens == pytest.approx(plain.nll)
    first = sum(int((batch.documents[:, 0] != SEPARATOR).sum()) for batch in windows())
    text = sum(int((batch.documents != SEPARATOR).sum()) for batch in windows())
    assert plain.tokens == text - first  # nothing comes before the first token of a window
    assert len(plain.tokens_per_document) == len(TEXTS)


def test_windows_dealt_in_turn_are_the_same_and_the_first_batch_samples_all():
    before, after = windows(), in_turn(windows())
    rows = [sorted(map(tuple, torch.cat([b.inputs["input_ids"] for b in each]).tolist())) for each in (before, after)]
    assert rows[0] == rows[1]
    reach = [int(each[0].documents.max()) for each in (before, after)]
    assert reach[1] > reach[0]


@pytest.mark.parametrize("head", ["classify", "bare", "masked"])
def test_rows_of_one_document_count_as_one(head):
    """Twice the same rows say nothing new: errors must not shrink as if they did."""
    dense = tiny("bert", head)
    small, tokenizer = tiny_compressed(dense), tiny_tokenizer()
    twice = [Document(text, number=i) for i, text in enumerate(TEXTS) for _ in range(2)]
    once, again = (
        compare(dense, small, padded_batches(each, tokenizer, seq_len=32, batch_size=4)) for each in (DOCUMENTS, twice)
    )
    for a, b in zip(once, again, strict=True):
        assert (a.documents, b.documents) == (len(TEXTS), len(TEXTS)), a.name
        assert a.low is not None and a.low <= a.small - a.dense <= a.high, a.name
        assert (b.small, b.low, b.high) == pytest.approx((a.small, a.low, a.high), rel=1e-3, abs=1e-6), a.name


def test_the_influence_on_cka_is_its_derivative():
    """Leaving out a document moves log CKA by about minus its influence times its share of the tokens."""
    dense = tiny("bert", "bare")
    small, batches = tiny_compressed(dense), tiny_batches(dense, 6)
    rows = [batch.rows(slice(i, i + 1)) for batch in batches for i in range(8)]
    whole = state_similarity(dense, small, rows)
    weights = torch.tensor(whole.tokens_per_document, dtype=torch.float64)
    influence = torch.tensor(whole.influence_per_document, dtype=torch.float64)
    assert float(influence @ weights) == pytest.approx(0, abs=1e-6 * float(weights.sum()))
    without = state_similarity(dense, small, rows[1:])
    share = float(weights[0] / weights.sum())
    expected = -float(influence[0]) * share / (1 - share)
    moved = torch.tensor(without.cka / whole.cka, dtype=torch.float64).log()
    assert float(moved) == pytest.approx(expected, abs=0.5 * abs(expected) + 20 * share**2)


def test_divergence_by_document_is_that_of_its_positions():
    dense = tiny("llama")
    small = tiny_compressed(dense)
    found = logit_divergence(dense, small, windows())
    assert len(found.kl_per_document) == len(TEXTS)
    weighted = zip(found.kl_per_document, found.positions_per_document, strict=True)
    assert sum(kl * n for kl, n in weighted) / found.positions == pytest.approx(found.kl)

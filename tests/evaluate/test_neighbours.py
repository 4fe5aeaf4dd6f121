"""Neighbours are those of the largest cosine, and the same for the same model."""

import pytest

from families import tiny, tiny_compressed, tiny_tokenizer
from slimformer.evaluate.neighbours import NEAREST, QUERIES, SENTENCES, _embedded, neighbours


class Words:
    """A tokenizer that knows every word of the sentences: the tiny one would call all of them unknown."""

    def __init__(self):
        self.words = sorted({word for sentence in SENTENCES for word in sentence.split()})

    def __call__(self, sentence, **_):
        import torch

        return {"input_ids": torch.tensor([[5 + self.words.index(word) % 59 for word in sentence.split()]])}


@pytest.mark.parametrize("head", ["bare", "masked", "classify"])
def test_the_same_model_finds_the_same_neighbours(head):
    model = tiny("bert", head)
    for each in neighbours(model, model, Words()):
        assert each["dense"] == each["small"]


def test_neighbours_are_the_largest_cosines_and_never_the_sentence_itself():
    model = tiny("bert")
    small = tiny_compressed(model, 0.4)
    found = neighbours(model, small, Words())
    assert [each["text"] for each in found] == list(SENTENCES[:QUERIES])
    for name, one in (("dense", model), ("small", small)):
        X = _embedded(one, Words())
        for i, each in enumerate(found):
            cosine = {SENTENCES[j]: float(X[i] @ X[j]) for j in range(len(SENTENCES)) if j != i}
            best = sorted(cosine.values(), reverse=True)[:NEAREST]
            assert [near["cosine"] for near in each[name]] == pytest.approx(best, abs=1e-6)
            assert all(cosine[near["text"]] == pytest.approx(near["cosine"], abs=1e-6) for near in each[name])
    assert any(each["dense"] != each["small"] for each in found)


def test_a_tokenizer_of_other_words_does_no_harm():
    model = tiny("distilbert")
    assert len(neighbours(model, model, tiny_tokenizer())) == QUERIES

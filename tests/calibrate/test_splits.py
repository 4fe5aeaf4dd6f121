import random

import pytest

from slimformer.calibrate.documents import Document
from slimformer.calibrate.splits import SHARES, SPLITS, cut_documents, split_documents
from slimformer.errors import DataEmpty, TooFewTokens


def corpus(count: int, seed: int = 0) -> list[Document]:
    rng = random.Random(seed)
    return [Document(f"document {i} " + "word " * rng.randrange(1, 80)) for i in range(count)]


def folded(text: str) -> str:
    return " ".join(text.split())


def test_every_document_is_in_exactly_one_split():
    documents = corpus(300)
    splits = split_documents(documents, seed=1)
    assert tuple(splits) == SPLITS
    assert sorted(d.text for part in splits.values() for d in part) == sorted(d.text for d in documents)


def test_shares_are_of_characters():
    documents = [*corpus(300), *(Document(f"{i} " + "long " * 2000) for i in range(20))]
    total = sum(len(d.text) for d in documents)
    splits = split_documents(documents, seed=3)
    for name, share in zip(SPLITS, SHARES, strict=True):
        assert sum(len(d.text) for d in splits[name]) / total == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("seed", range(5))
def test_same_text_never_in_two_splits(seed):
    documents = corpus(40) * 3 + [Document(d.text.replace(" ", "\n  ")) for d in corpus(40)]
    splits = split_documents(documents, seed=seed)
    found = [{folded(d.text) for d in part} for part in splits.values()]
    assert sum(map(len, found)) == len(set.union(*found)) == 40
    assert sum(map(len, splits.values())) == 160


def test_pairs_with_a_common_side_stay_together():
    documents = [Document(f"premise {i}", f"hypothesis {i} {j}") for i in range(30) for j in range(3)]
    for part in split_documents(documents, seed=0).values():
        assert len(part) == 3 * len({d.text for d in part})


def test_a_template_does_not_tie_all_pairs_together():
    documents = [Document("Is this true?", f"claim {i}") for i in range(200)]
    splits = split_documents(documents, seed=0)
    assert len(splits["fit"]) == pytest.approx(110, abs=3)


def test_a_group_is_never_divided():
    documents = [Document(f"question {i}", group=f"article {i % 9}") for i in range(90)]
    parts = split_documents(documents, seed=2).values()
    groups = [{d.group for d in part} for part in parts]
    assert sum(map(len, groups)) == 9


def test_order_of_the_documents_does_not_matter():
    documents = corpus(100) + corpus(10)
    shuffled = random.Random(7).sample(documents, len(documents))
    assert split_documents(documents, seed=5) == split_documents(shuffled, seed=5)


def test_seed_decides():
    documents = corpus(100)
    assert split_documents(documents, seed=1) == split_documents(documents, seed=1)
    assert split_documents(documents, seed=1) != split_documents(documents, seed=2)


def test_the_global_random_state_is_left_alone():
    random.seed(0)
    before = random.getstate()
    split_documents(corpus(10), seed=1)
    assert random.getstate() == before


@pytest.mark.parametrize("count", [4, 5, 7])
@pytest.mark.parametrize("seed", range(5))
def test_every_split_gets_one_of_four_documents(count, seed):
    documents = [Document("x" * 10_000), *corpus(count - 1)]
    assert all(split_documents(documents, seed=seed).values())


@pytest.mark.parametrize("separator", ["\n\n", ". ", "\n", "。"])
@pytest.mark.parametrize("count", [1, 3])
def test_few_long_texts_are_cut_into_passages(separator, count):
    documents = [
        Document(separator.join(f"document {i} says sentence {j} in some words" for j in range(200)))
        for i in range(count)
    ]
    splits = split_documents(documents, seed=0)
    total = sum(len(d.text) for d in documents)
    for name, share in zip(SPLITS, SHARES, strict=True):
        assert sum(len(d.text) for d in splits[name]) / total == pytest.approx(share, abs=0.06)
    words = sum(len(d.text.split()) for part in splits.values() for d in part)
    assert words == sum(len(d.text.split()) for d in documents) or separator == "。"


def test_cutting_loses_no_word_and_keeps_labelled_documents_whole():
    text = "\n\n".join(f"One sentence here. Another, number {i}. And a third!" for i in range(50))
    plain, labelled, pair = Document(text), Document(text, label=1), Document(text, "other")
    passages = cut_documents([plain, labelled, pair], size=200)
    assert passages[-2:] == [labelled, pair]
    assert " ".join(d.text for d in passages[:-2]).split() == text.split()
    assert all(200 <= len(d.text) < 400 for d in passages[:-3])


def test_no_documents_is_empty_data():
    with pytest.raises(DataEmpty, match="there are no documents to split"):
        split_documents([], seed=0)


@pytest.mark.parametrize(
    "documents",
    [[Document("one two three")], [Document("a", "b"), Document("c", "d")], [Document("same")] * 50],
)
def test_too_little_to_tell_apart_is_said(documents):
    with pytest.raises(TooFewTokens) as caught:
        split_documents(documents, seed=0)
    assert "fit, select, report, certify need a text each, and the data have" in str(caught.value)
    assert "give at least 4 documents, or a longer text" in str(caught.value)


def test_shares_must_fit_the_splits():
    with pytest.raises(ValueError, match="shares must be 4 positive numbers"):
        split_documents(corpus(10), seed=0, shares=(0.5, 0.5))

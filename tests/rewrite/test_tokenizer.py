"""A tokenizer with fewer tokens writes every text it wrote, and cuts texts of kept tokens as before."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.models.pieces import Pieces, pieces_of
from slimformer.plan.vocabulary import Wanted, choose_tokens
from slimformer.rewrite.tokenizer import in_new_order, smaller_tokenizer
from tokenizers_by_kind import KINDS, TEXTS

WORDS = sorted({word for text in TEXTS for word in text.split()})
TEXT = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)), max_size=8).map(" ".join)


@cache
def _shrunk(kind: str, spare: int) -> tuple[Any, Pieces, list[int], Any]:
    """A tokenizer, its pieces, what stays of them in the new order, and the smaller tokenizer."""
    tokenizer = KINDS[kind]()
    pieces = pieces_of(tokenizer)
    counts = _counts(tokenizer, pieces)
    least = len(choose_tokens(counts, pieces.always, pieces.parts, Wanted(cover=1e-9)))
    stay = choose_tokens(counts, pieces.always, pieces.parts, Wanted(keep=least + spare))
    order = in_new_order(pieces, stay)
    return tokenizer, pieces, order, smaller_tokenizer(tokenizer, pieces, order)


def _counts(tokenizer: Any, pieces: Pieces) -> dict[int, int]:
    found = [number for text in TEXTS for number in tokenizer(text)["input_ids"]]
    return {number: found.count(number) for number in pieces.numbers.values()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spare", [0, 12])
def test_it_has_as_many_tokens_as_asked_for(kind: str, spare: int) -> None:
    tokenizer, pieces, order, small = _shrunk(kind, spare)
    assert len(small) == len(order) < len(pieces)
    assert small.convert_ids_to_tokens(range(len(order))) == tokenizer.convert_ids_to_tokens(order)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(TEXT)
def test_texts_of_kept_tokens_get_the_same_tokens(kind: str, text: str) -> None:
    for spare in (0, 12):
        tokenizer, _, order, small = _shrunk(kind, spare)
        ids = tokenizer(text)["input_ids"]
        if set(ids) <= set(order):
            assert [order[number] for number in small(text)["input_ids"]] == ids


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(TEXT)
def test_every_text_is_written_as_before(kind: str, text: str) -> None:
    for spare in (0, 12):
        tokenizer, _, _, small = _shrunk(kind, spare)
        before, after = tokenizer(text)["input_ids"], small(text)["input_ids"]
        unknown = (before.count(tokenizer.unk_token_id), after.count(small.unk_token_id))
        assert unknown[0] == unknown[1]
        assert tokenizer.decode(before) == small.decode(after)


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_bytes_lose_nothing(text: str) -> None:
    small = _shrunk("byte_level", 0)[3]
    assert small.decode(small(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_keep_their_roles_and_places(kind: str) -> None:
    tokenizer, _, _, small = _shrunk(kind, 0)
    assert small.special_tokens_map == tokenizer.special_tokens_map
    for texts in (("fox",), ("fox", "dog")):
        before, after = (each.convert_ids_to_tokens(each(*texts)["input_ids"]) for each in (tokenizer, small))
        framed = [[token for token in tokens if token in tokenizer.all_special_tokens] for tokens in (before, after)]
        assert framed[0] == framed[1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_what_is_used(kind: str, tmp_path: Any) -> None:
    from transformers import AutoTokenizer

    small = _shrunk(kind, 12)[3]
    small.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == small.get_vocab()
    assert [again(text)["input_ids"] for text in TEXTS] == [small(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_there_is_and_less_than_characters_are_refused(kind: str) -> None:
    tokenizer = KINDS[kind]()
    pieces = pieces_of(tokenizer)
    counts = dict.fromkeys(pieces.numbers.values(), 1)
    with pytest.raises(BudgetOutOfReach, match="give fewer"):
        choose_tokens(counts, pieces.always, pieces.parts, Wanted(keep=len(pieces) + 1))
    with pytest.raises(BudgetOutOfReach, match="not every text could be written"):
        choose_tokens(counts, pieces.always, pieces.parts, Wanted(keep=3))


def test_tokenizers_without_a_file_are_refused() -> None:
    from transformers import ByT5Tokenizer

    for tokenizer in (None, ByT5Tokenizer()):
        with pytest.raises(UnknownMethod, match=r"tokenizer\.json"):
            pieces_of(tokenizer)


def test_words_that_have_no_pieces_are_refused() -> None:
    from families import tiny_tokenizer

    with pytest.raises(UnknownMethod, match="WordLevel"):
        pieces_of(tiny_tokenizer())

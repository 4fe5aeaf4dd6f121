"""Tokens that are gone are matched with the pieces that cover their characters."""

import pytest

from slimformer.calibrate.document import Document
from slimformer.calibrate.rewritten import rewritten
from slimformer.models.pieces import pieces_of
from slimformer.plan.vocabulary import Wanted, choose_tokens
from slimformer.rewrite.tokenizer import in_new_order, smaller_tokenizer
from tokenizers_by_kind import KINDS, TEXTS


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_spell_the_word_they_stand_for(kind: str) -> None:
    dense = KINDS[kind]()
    pieces = pieces_of(dense)
    counts = dict.fromkeys(pieces.by_use, 0)
    stay = choose_tokens(counts, pieces.always, pieces.parts, Wanted(cover=1e-9))
    order = in_new_order(pieces, stay)
    small = smaller_tokenizer(dense, pieces, order)
    found = rewritten([Document(text) for text in TEXTS], dense, small, order)
    assert found.words and sum(found.pieces.values()) == sum(
        len(ids) for ids in small(TEXTS, add_special_tokens=False)["input_ids"]
    )
    for token, written in found.words:
        assert token not in stay and len(written) > 1
        spelt = "".join(small.convert_ids_to_tokens(written)).replace("##", "")
        assert spelt == dense.convert_ids_to_tokens(token).replace("##", "")


def test_tokens_that_stay_are_not_matched() -> None:
    dense = KINDS["word_piece"]()
    assert not rewritten([Document(text) for text in TEXTS], dense, dense, range(len(dense))).words

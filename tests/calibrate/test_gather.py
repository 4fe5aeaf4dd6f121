"""The certify split is made of documents: one row each, none of which any other split has read."""

from __future__ import annotations

import pytest

from families import tiny, tiny_tokenizer
from slimformer.calibrate.documents import Document
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.calibrate.splits import one_of_each, split_documents
from slimformer.calibrate.text import Batch, packed_batches, padded_batches, unread
from slimformer.models import describe
from terminal import texts

TOKENIZER = tiny_tokenizer()
SPECIAL = set(TOKENIZER.all_special_ids)


def plain(ids: list[int]) -> str:
    """Token ids as text in which one list can be looked for in another."""
    return " ".join(str(i) for i in ids if i not in SPECIAL) + " "


def rows(batches: list[Batch]) -> list[str]:
    found = []
    for batch in batches:
        ids, mask = batch.inputs["input_ids"], batch.mask
        found += [plain(row[real].tolist()) for row, real in zip(ids, mask, strict=True)]
    return found


def gathered(model_type: str, documents: list[Document], **how: object) -> Data:
    model = tiny(model_type)
    return gather(documents, model, TOKENIZER, describe(model), Reading(tokens=400, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "bert"])
def test_every_row_to_certify_on_is_the_beginning_of_a_document_of_its_own(model_type: str) -> None:
    documents = [Document(text) for text in texts(120)]
    data = gathered(model_type, documents)
    known = [plain(TOKENIZER(d.text, add_special_tokens=False)["input_ids"]) for d in documents]
    owners = [[i for i, text in enumerate(known) if text.startswith(row)] for row in rows(data.splits["certify"])]
    assert len(owners) >= 4
    assert all(len(each) == 1 for each in owners)
    assert len({each[0] for each in owners}) == len(owners)


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_what_is_certified_on_was_not_read_before(model_type: str) -> None:
    data = gathered(model_type, [Document(text) for text in texts(120)])
    read = "".join(row for split in ("fit", "select", "report") for row in rows(data.splits[split]))
    for row in rows(data.splits["certify"]):
        assert row[: len(row) // 2] not in read


def test_documents_that_were_left_unread_are_certified_on() -> None:
    """More of them than the tenth that is set aside, as long as there are tokens to spend."""
    documents, model = [Document(text) for text in texts(120)], tiny("llama")
    aside = len(split_documents(documents, seed=0)["certify"])
    for tokens, more in ((1000, True), (100_000, False)):
        data = gather(documents, model, TOKENIZER, describe(model), Reading(tokens=tokens, seq_len=16))
        assert (len(rows(data.splits["certify"])) > aside) == more


@pytest.mark.parametrize("tokens", [1, 37, 400, 10**6])
def test_unread_documents_are_in_no_batch(tokens: int) -> None:
    documents = [Document(text) for text in texts(40)]
    for batches, most in ((packed_batches, None), (padded_batches, 16)):
        left = unread(documents, TOKENIZER, tokens=tokens, seq_len=most)
        read = "".join(rows(batches(documents, TOKENIZER, seq_len=16, tokens=tokens)))
        assert documents[len(documents) - len(left) :] == left
        for document in left:
            start = plain(TOKENIZER(document.text, add_special_tokens=False)["input_ids"][:16])
            assert start not in read
    assert not left if tokens == 10**6 else left


def test_one_of_every_group_is_taken() -> None:
    shared = [Document("a", "one"), Document("a", "two"), Document("b", "three"), Document("c", group="g")]
    found = one_of_each([*shared, Document("d", group="g"), Document("e")])
    assert len(found) == 4
    assert sum(d.text == "a" for d in found) == sum(d.group == "g" for d in found) == 1

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from conftest import SHARED, needs
from slimformer.calibrate.documents import Document
from slimformer.calibrate.text import (
    Batch,
    data_hash,
    packed_batches,
    padded_batches,
    token_batches,
)
from slimformer.errors import DataUnreadable

WORDS = [f"w{i}" for i in range(50)]
STORIES = SHARED / "models" / "stories260K"
TYPED = ["input_ids", "token_type_ids", "attention_mask"]


def tokenizer(*, specials: bool = False, **options) -> PreTrainedTokenizerFast:
    """One token per word; with `specials`, [CLS] and [SEP] and token types as BERT has them."""
    names = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "</s>", *WORDS]
    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if specials:
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
        options = {"pad_token": "[PAD]", "model_input_names": TYPED, **options}
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", **options)


def words(count: int, start: int = 0) -> str:
    return " ".join(WORDS[(start + i) % len(WORDS)] for i in range(count))


LENGTHS = [3, 40, 7, 1, 25, 12, 9, 30, 5, 18]
DOCUMENTS = [Document(words(n, start=n), label=n % 2) for n in LENGTHS]


def total(found: list[Batch]) -> int:
    return sum(batch.tokens for batch in found)


def flat(found: list[Batch]) -> list[int]:
    return torch.cat([batch.inputs["input_ids"].flatten() for batch in found]).tolist()


# -- packed


def test_windows_are_the_documents_end_to_end():
    tok = tokenizer(eos_token="</s>")
    found = packed_batches(DOCUMENTS, tok, seq_len=16, batch_size=4)
    stream = [i for d in DOCUMENTS for i in [*tok(d.text)["input_ids"], tok.eos_token_id]]
    assert flat(found) == stream[: len(stream) // 16 * 16]
    assert all(batch.inputs["input_ids"].shape[1] == 16 and len(batch.inputs["input_ids"]) <= 4 for batch in found)


def test_windows_have_no_padding():
    for batch in packed_batches(DOCUMENTS, tokenizer(eos_token="</s>"), seq_len=16):
        assert batch.mask.all() and batch.mask.dtype == torch.bool
        assert batch.inputs["attention_mask"].all()


def test_a_tokenizer_without_separator_just_joins():
    found = packed_batches([Document("w1 w2"), Document("w3")], tokenizer(), seq_len=3)
    assert flat(found) == tokenizer()("w1 w2 w3")["input_ids"]


def test_separators_of_the_tokenizer_are_not_doubled():
    found = packed_batches([Document("w1"), Document("w2")], tokenizer(specials=True, eos_token="</s>"), seq_len=6)
    assert flat(found) == [2, 6, 3, 2, 7, 3]


def test_the_only_window_may_be_short():
    (batch,) = packed_batches([Document(words(5))], tokenizer(), seq_len=100)
    assert batch.inputs["input_ids"].shape == (1, 5)


@pytest.mark.parametrize("tokens", [1, 10, 16, 50, 100])
@pytest.mark.parametrize("make", [packed_batches, padded_batches])
def test_never_more_tokens_than_asked(make, tokens):
    found = make(DOCUMENTS, tokenizer(eos_token="</s>"), seq_len=16, tokens=tokens, batch_size=3)
    assert 0 < total(found) <= tokens


def test_a_pair_is_packed_as_two_texts_in_a_row():
    found = packed_batches([Document("w1 w2", "w3")], tokenizer(), seq_len=3)
    assert flat(found) == tokenizer()("w1 w2 w3")["input_ids"]


# -- padded


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_mask_leaves_exactly_the_text(side):
    tok = tokenizer(specials=True, padding_side=side)
    found = padded_batches(DOCUMENTS, tok, seq_len=64, batch_size=4)
    rows = [ids[mask].tolist() for b in found for ids, mask in zip(b.inputs["input_ids"], b.mask, strict=True)]
    assert sorted(rows) == sorted(tok(d.text)["input_ids"] for d in DOCUMENTS)
    for batch in found:
        assert torch.equal(batch.inputs["attention_mask"].bool(), batch.mask)
        assert batch.mask[:, -1 if side == "left" else 0].all()


def test_pairs_have_token_types():
    (batch,) = padded_batches([Document("w1 w2", "w3"), Document("w4", "w5")], tokenizer(specials=True), seq_len=9)
    assert batch.inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]


def test_pairs_and_single_texts_may_be_mixed():
    documents = [Document("w1", "w2"), Document("w3"), Document("w4", "w5")]
    assert total(padded_batches(documents, tokenizer(specials=True), seq_len=9)) == 5 + 3 + 5


def test_long_documents_are_truncated_and_kept():
    found = padded_batches(DOCUMENTS, tokenizer(), seq_len=8)
    assert total(found) == sum(min(n, 8) for n in LENGTHS)


def test_rows_of_like_length_are_together():
    documents = [Document(words(n)) for n in range(1, 101)]
    found = padded_batches(documents[::-1], tokenizer(), seq_len=100, batch_size=10)
    padding = sum(int((~batch.mask).sum()) for batch in found)
    assert padding < 0.1 * total(found)


def test_the_first_batches_are_not_the_shortest_texts():
    documents = [Document(words(n % 100 + 1)) for n in range(400)]
    lengths = [batch.mask.shape[1] for batch in padded_batches(documents, tokenizer(), seq_len=100, batch_size=4)]
    first = lengths[: len(lengths) // 2]
    assert sum(first) / sum(lengths) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("options", [{}, {"eos_token": "</s>"}, {"pad_token": "[PAD]"}])
def test_any_tokenizer_can_be_padded(options):
    (batch,) = padded_batches([Document("w1 w2 w3"), Document("w1")], tokenizer(**options), seq_len=8)
    assert batch.mask.sum(1).tolist() == [1, 3] and batch.inputs["input_ids"].min() >= 0


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self) -> None:
        self.inner, self.characters = tokenizer(), 0

    def __call__(self, texts, *args, **options):
        self.characters += sum(map(len, texts))
        return self.inner(texts, *args, **options)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_an_endless_document_costs_no_more_than_a_long_one():
    given = []
    for n in (30_000, 300_000):
        endless, padded, packed = Document("w1 " * n), Counting(), Counting()
        assert total(padded_batches([endless], padded, seq_len=64)) == 64
        assert total(packed_batches([endless], packed, seq_len=64, tokens=640)) == 640
        given.append((padded.characters, packed.characters))
    assert given[0] == given[1] and min(given[0]) > 0


def test_texts_without_tokens_make_no_rows():
    assert padded_batches([Document("")], tokenizer(), seq_len=8) == []
    assert packed_batches([Document("")], tokenizer(), seq_len=8) == []


# -- labels


def test_labels_stay_with_their_rows():
    for batch in padded_batches(DOCUMENTS, tokenizer(), seq_len=64, batch_size=3):
        assert batch.labels.tolist() == [n % 2 for n in batch.mask.sum(1).tolist()]
        assert batch.labels.dtype == torch.long


@pytest.mark.parametrize(
    ("labels", "expected"),
    [((0.5, 1), [0.5, 1.0]), ((None, 1), None), (("no", "yes"), [0, 1]), (("no", "maybe"), None)],
)
def test_labels_are_numbers_or_absent(labels, expected):
    documents = [Document("w1", label=labels[0]), Document("w1 w2", label=labels[1])]
    (batch,) = padded_batches(documents, tokenizer(), seq_len=8, label_ids={"no": 0, "yes": 1})
    assert (batch.labels if expected is None else batch.labels.tolist()) == expected


# -- batches, ids, hash, limits


def test_token_ids_need_no_tokenizer():
    ids = torch.arange(30).view(10, 3)
    found = token_batches(ids, 4)
    assert [len(batch.inputs["input_ids"]) for batch in found] == [4, 4, 2]
    assert total(found) == 30 and flat(found) == list(range(30))


@pytest.mark.parametrize("ids", [torch.zeros(3), torch.zeros(3, 4)])
def test_token_ids_are_a_table_of_integers(ids):
    with pytest.raises(DataUnreadable, match="token ids must be integers, sequences × length; got"):
        token_batches(ids)


def test_a_batch_moves_as_a_whole():
    batch = Batch({"input_ids": torch.ones(2, 3)}, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2)).to("meta")
    assert {t.device.type for t in (*batch.inputs.values(), batch.mask, batch.labels)} == {"meta"}


def test_images_count_as_one_token_each():
    assert Batch({"pixel_values": torch.zeros(5, 3, 2, 2)}, None).tokens == 5


def test_the_hash_is_of_the_texts_whatever_their_order():
    assert data_hash(DOCUMENTS) == data_hash(DOCUMENTS[::-1])
    assert data_hash(DOCUMENTS) != data_hash(DOCUMENTS[1:])
    assert data_hash([Document("a", "b")]) != data_hash([Document("ab")])
    assert len(data_hash([])) == 64


@needs(STORIES)
def test_a_llama_tokenizer_opens_every_document_with_its_own_mark():
    tok = AutoTokenizer.from_pretrained(STORIES)
    documents = [Document("Once upon a time there was a cat."), Document("The end.")]
    ids = flat(packed_batches(documents, tok, seq_len=4))
    assert ids[0] == tok.bos_token_id and ids.count(tok.bos_token_id) == 2 and tok.eos_token_id not in ids
    (batch,) = padded_batches(documents, tok, seq_len=64)
    assert batch.tokens == sum(len(tok(d.text)["input_ids"]) for d in documents)

"""Text a model writes itself: the same for the same seed, by models that can write only, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from families import tiny, tiny_tokenizer
from slimformer.calibrate.gather import Reading, gather
from slimformer.calibrate.own_text import cache_folder, own_documents
from slimformer.errors import DataNotFound
from slimformer.models import describe
from vocabularies import of_bytes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(("model_type", "head"), [("llama", "causal"), ("bert", "masked")])
def test_the_same_seed_gives_the_same_text_and_another_another(model_type: str, head: str) -> None:
    tokenizer = of_bytes() if head == "causal" else tiny_tokenizer()
    model = tiny(model_type, head, vocab_size=384)
    first = own_documents(model, tokenizer, tokens=200, seed=0)
    assert own_documents(model, tokenizer, tokens=200, seed=0) == first  # from the cache
    for file in cache_folder().iterdir():
        file.unlink()
    assert own_documents(model, tokenizer, tokens=200, seed=0) == first  # written again
    assert own_documents(model, tokenizer, tokens=200, seed=1) != first
    assert sum(len(document.text) for document in first) >= 100


def test_a_spoilt_cache_is_written_anew() -> None:
    model, tokenizer = tiny("llama", vocab_size=384), of_bytes()
    first = own_documents(model, tokenizer, tokens=100, seed=0)
    (file,) = cache_folder().iterdir()
    file.write_text('{"texts": [3, null]}')
    assert own_documents(model, tokenizer, tokens=100, seed=0) == first


def test_a_model_without_a_head_that_writes_is_told_what_to_use() -> None:
    with pytest.raises(DataNotFound, match=r"BertModel has no head that writes text.*builtin"):
        own_documents(tiny("bert", "bare"), of_bytes(), tokens=10, seed=0)


def test_a_model_that_is_read_block_by_block_is_told_so() -> None:
    with pytest.raises(DataNotFound, match=r"must be in memory whole; leave .*memory"):
        own_documents(tiny("llama").to("meta"), of_bytes(), tokens=10, seed=0)


def test_its_own_text_is_one_source_of_several(tmp_path: Path) -> None:
    model, mine = tiny("llama", vocab_size=384), tmp_path / "mine.txt"
    mine.write_text("\n\n".join(f"zebra {i} " * 6 for i in range(90)))
    data = gather(f"self,{mine}", model, of_bytes(), describe(model), Reading(tokens=600, seq_len=32))
    fitted = of_bytes().decode(torch.cat([batch.inputs["input_ids"].flatten() for batch in data.splits["fit"]]))
    assert 0.2 < fitted.count("zebra") * 9 / len(fitted) < 0.8
    assert data.reading["sources"] == ["self", str(mine)]


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert own_documents(tiny("llama", vocab_size=384), of_bytes(), tokens=50, seed=0)


def test_another_tokenizer_does_not_read_what_was_written_with_the_first() -> None:
    model, other = tiny("llama", vocab_size=384), of_bytes()
    own_documents(model, of_bytes(), tokens=50, seed=0)
    other.add_tokens(["another"])
    own_documents(model, other, tokens=50, seed=0)
    assert len(list(cache_folder().iterdir())) == 2

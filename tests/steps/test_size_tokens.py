"""A size that may take tokens, too: what is chosen, what it rests on, and where it stays out of the way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import slimformer
from families import tiny
from slimformer.report.card import size_line
from tokenizers_by_kind import WORDS, word_piece

SOME = WORDS.split()[:9]  # of more than thirty: most tokens are of no use
TEXTS = [" ".join((SOME * 3)[i % 9 :][: 6 + i % 5]) + f" {i}" for i in range(240)]
SIZE = 71_000  # with all tokens in single precision a third of the blocks, in four bits


def _sized(data: Any = TEXTS, **how: Any) -> Any:
    tokenizer = word_piece()
    model = tiny("bert", "bare", vocab_size=len(tokenizer))
    given = {"size": SIZE, "tables": False, "tokens": 1000, "only_data": True, "refine": False, "timing": False, **how}
    return slimformer.compress(model, data, processor=tokenizer, **given)


def test_tokens_nobody_uses_make_room_for_blocks(tmp_path: Path) -> None:
    result = _sized()
    sizing = result.report.sizing
    losses, chosen = sizing["losses"], sizing["chosen"]
    assert losses["fewer"] < losses["all"]
    assert chosen["params"] > max(each["params"] for each in sizing["candidates"])
    assert chosen["tokens"] == result.report.vocabulary["keep"] == result.model.config.vocab_size
    assert result.report.small.bytes == chosen["bytes"] <= SIZE
    saved = result.save(tmp_path / "out", verify=False)
    assert (saved / "model.safetensors").stat().st_size <= SIZE
    assert len(AutoTokenizer.from_pretrained(saved)) == chosen["tokens"]
    line = size_line(sizing)
    assert line in (saved / "README.md").read_text() and f"{chosen['tokens']:,} tokens" in line


def test_all_tokens_stay_where_that_loses_less() -> None:
    """A guess that does not come true is not taken; the models with all tokens are those of before."""
    wide = [" ".join(WORDS.split()[i % 30 :][: 6 + i % 5]) + f" {i}" for i in range(240)]
    found, without = (_sized(wide, size=90_000, settings={"cut.fewer_tokens": each}) for each in (True, False))
    assert found.report.sizing["candidates"] == without.report.sizing["candidates"]
    assert found.report.vocabulary is None and "losses" not in without.report.sizing
    assert all(torch.equal(x, y) for x, y in zip(found.model.parameters(), without.model.parameters(), strict=True))
    assert size_line(without.report.sizing) == ""


@pytest.mark.parametrize("how", [{"vocab": 250}, {"recipe": "uniform"}])
def test_no_tokens_are_tried_where_somebody_said_how_many_or_nothing_was_probed(how: dict[str, Any]) -> None:
    assert "losses" not in _sized(**how).report.sizing


def test_what_cannot_lose_tokens_is_sized_as_before() -> None:
    tokenizer = word_piece()
    model = tiny("bert", "bare", vocab_size=len(tokenizer))
    ids = torch.zeros(60, 12, dtype=torch.long).random_(5, 200, generator=torch.Generator().manual_seed(0))
    how = {"size": SIZE, "tables": False, "refine": False, "timing": False}
    assert "losses" not in slimformer.compress(model, ids, processor=tokenizer, **how).report.sizing

"""Broad text beside a user's own: every source has one role, and what is measured elsewhere was never fitted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from families import tiny
from slimformer.calibrate.broad import broad_documents, shares_nothing_with, shuffled
from slimformer.calibrate.builtin import KINDS, builtin_documents, role_of
from slimformer.calibrate.documents import Document
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.calibrate.text import Batch
from slimformer.models import describe
from terminal import texts
from vocabularies import of_bytes


def gathered(model_type: str, source: object, **how: object) -> Data:
    model = tiny(model_type, vocab_size=384)
    return gather(source, model, of_bytes(), describe(model), Reading(tokens=600, seq_len=32, **how))  # type: ignore[arg-type]


def read(batches: list[Batch], tokenizer=of_bytes()) -> str:  # noqa: B008
    rows = [row[real] for batch in batches for row, real in zip(batch.inputs["input_ids"], batch.mask, strict=True)]
    return "\n".join(tokenizer.decode(row, skip_special_tokens=True) for row in rows)


def pieces(documents: list[Document]) -> set[str]:
    return {document.text[:20] for document in documents}


def test_no_source_has_two_roles_and_the_roles_cover_all_text() -> None:
    by_role = {role: {d.source for d in builtin_documents(KINDS, role)} for role in ("fit", "select", "other")}
    assert len(by_role["other"]) >= 3 and by_role["select"]
    assert all(role_of(source) == role for role, sources in by_role.items() for source in sources)


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_broad_text_is_fitted_beside_a_users_own_and_other_sources_are_only_measured_on(model_type: str) -> None:
    own = [Document(text) for text in texts(80)]
    alone, mixed = gathered(model_type, own), gathered(model_type, own, broad=True)
    assert not alone.other and alone.mixed is None
    assert mixed.tokens["fit"] > 1.2 * alone.tokens["fit"] and mixed.tokens["select"] > alone.tokens["select"]
    for split in ("report", "certify"):  # these are about the user's own text
        assert read(mixed.splits[split]) == read(alone.splits[split])
    assert len(mixed.other) >= 3
    seen = read([*mixed.splits["fit"], *mixed.splits["select"]])
    for name, batches in mixed.other.items():
        assert role_of(name) == "other"
        assert read(batches)[:30] not in seen


def test_beside_the_builtin_text_nothing_is_fitted() -> None:
    assert read(gathered("llama", "builtin", broad=True).splits["fit"]) == read(
        gathered("llama", "builtin").splits["fit"]
    )


def test_whoever_reads_the_beginning_reads_every_text() -> None:
    """The metric and the probes read the first tokens alone."""
    one, two = (gathered("llama", [Document(word * 9) for word in words]).splits["fit"] for words in (WORDS, OTHERS))
    beginning = read(shuffled([one, two], seed=0, batch_size=8)[:1])
    assert any(word in beginning for word in WORDS) and any(word in beginning for word in OTHERS)


WORDS = [f"alpha {i} " for i in range(60)]
OTHERS = [f"omega {i} " for i in range(60)]


def words_in_a_row(text: str, n: int = 24) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


@pytest.mark.parametrize("model_type", ["llama", "bert"])
@pytest.mark.parametrize("sources", ["{mine},builtin", "builtin,{mine}", "builtin:code,{mine}", "builtin:code+stories"])
def test_nothing_held_out_is_fitted_when_the_builtin_text_is_one_of_several(
    tmp_path: Path, model_type: str, sources: str
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("\n\n".join(" ".join(f"{word}{i}" for word in "abcdefghijklmnopqrstuvwxyz" * 9) for i in range(90)))
    model = tiny(model_type, vocab_size=384, max_position_embeddings=256)
    data = gather(
        sources.format(mine=mine), model, of_bytes(), describe(model), Reading(tokens=60_000, seq_len=256, broad=True)
    )
    fitted = words_in_a_row(read([*data.splits["fit"], *data.splits["select"]]), 12)
    for split in ("report", "certify"):
        held_out = words_in_a_row(read(data.splits[split]), 12)
        assert held_out and len(held_out & fitted) <= 0.01 * len(held_out)  # phrases of code


def test_kinds_of_the_builtin_text_get_broad_text_of_the_other_kinds(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("\n\n".join(texts(80)))
    assert gathered("llama", f"builtin:code,{mine}", broad=True).mixed == "builtin"
    assert gathered("llama", f"{mine},builtin", broad=True).mixed is None
    code = pieces(builtin_documents(("code",)))
    left = broad_documents("fit", rows=False, allowed=shares_nothing_with(builtin_documents(("code",))))
    assert left and not pieces(left) & code


def test_text_that_is_the_users_own_is_not_called_other_text(tmp_path: Path) -> None:
    whales = [document.text for document in builtin_documents(("stories",), "other")]
    mine = tmp_path / "whales.txt"
    mine.write_text("\n<|endoftext|>\n".join(text.replace("\n", "  \n") for text in whales))
    every, left = (set(gathered("llama", source, broad=True).other) for source in ("builtin", str(mine)))
    assert every - left == {"moby-dick"}


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_other_text_is_of_many_documents_of_every_source(model_type: str) -> None:
    model = tiny(model_type, vocab_size=384)
    own = [Document(text) for text in texts(80)]
    data = gather(own, model, of_bytes(), describe(model), Reading(tokens=32_768, seq_len=64, broad=True))
    for name, batches in data.other.items():
        numbers = torch.cat([batch.documents.flatten() for batch in batches])  # type: ignore[union-attr]
        assert len(numbers[numbers >= 0].unique()) >= 5, name  # of bytes; of usual tokens four times as many

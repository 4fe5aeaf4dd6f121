"""Broad text beside a user's own: every source has one role, and what is measured elsewhere was never fitted."""

from __future__ import annotations

import pytest

from families import tiny
from slimformer.calibrate.broad import shuffled
from slimformer.calibrate.builtin import KINDS, builtin_documents, role_of
from slimformer.calibrate.documents import Document
from slimformer.calibrate.gather import Data, gather
from slimformer.calibrate.text import Batch
from slimformer.models import describe
from terminal import texts
from vocabularies import of_bytes


def gathered(model_type: str, source: object, **how: object) -> Data:
    model = tiny(model_type, vocab_size=384)
    return gather(source, model, of_bytes(), describe(model), tokens=600, seq_len=32, **how)  # type: ignore[arg-type]


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

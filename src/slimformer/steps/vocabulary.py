"""Step `vocabulary`: fewer tokens, so smaller tables at both ends of the model.

Tokens are counted on the calibration text, or on other text; the most frequent stay, with special tokens, bytes and
characters, so that every text can still be written. Rows of the embedding and of the head go, blocks stay as they are.
A removed word is written in several tokens, whose embeddings are refitted where that helps (`steps.vocabulary_refit`;
without it, texts of kept tokens get the same outputs to the bit). Texts become longer; the report says by how much. All
later steps start from the smaller vocabulary, and read the data in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from slimformer.calibrate.counts import documents_of, encoded, tokens_in_batches, tokens_in_texts
from slimformer.calibrate.documents import Document
from slimformer.calibrate.gather import Data, Reading, first_characters, gather, vocabulary
from slimformer.errors import BudgetOutOfReach, DataUnreadable, ModelBroken, UnknownMethod
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.load import Loaded
from slimformer.models.pieces import Pieces, pieces_of
from slimformer.plan.vocabulary import Wanted, choose_tokens, covered
from slimformer.report.names import source_names
from slimformer.rewrite.tokenizer import in_new_order, smaller_tokenizer
from slimformer.rewrite.vocabulary import named_tokens, table_bytes, with_tokens
from slimformer.run import Run
from slimformer.steps.step import Step
from slimformer.steps.vocabulary_refit import refitted

REFITTED = 4_000_000  # characters of text, at most, on which pieces are matched with words


class Vocabulary(Step):
    """Keep the tokens a text needs most; the others are written in pieces. Cost: counting, and a copy of the model."""

    keep: int | None = Field(default=None, ge=1, description="tokens to keep")
    cover: float | None = Field(default=None, gt=0, le=1, description="or: the share of the text they must cover")
    data: str | Path | None = Field(default=None, description="text to count on; none: what is calibrated on")
    multiple_of: int = Field(default=8, ge=1, description="the number of tokens is rounded up to a multiple of this")
    refit: bool = Field(default=True, description="let embeddings of pieces make up for words that are gone?")

    flags: ClassVar[dict[str, str]] = {"vocab": "keep", "vocab_cover": "cover", "vocab_data": "data"}
    place: ClassVar[int] = -3
    why_no_budget: ClassVar[str] = "it takes tokens away and cuts no widths"

    @property
    def fits(self) -> bool:
        return False

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.keep, self.cover, self.multiple_of)

    def require_complete(self) -> None:
        """A number of tokens, or a share of the text."""
        if (self.keep is None) == (self.cover is None):
            raise BudgetOutOfReach(
                f"how many tokens stay is said by one number; give {option('vocab', 16000)} for so many, or "
                f"{option('vocab', 0.99)} for as many as cover that share of the text"
            )

    def require_possible(self, run: Run) -> None:
        """Refuse models without tokens, tokenizers that cannot lose any, and numbers out of reach."""
        if describe(run.dense).family.image:
            raise UnknownMethod(f"{run.loaded.name} reads images and has no vocabulary; leave {option('vocab')} out")
        pieces = pieces_of(run.loaded.processor)
        most = max(pieces.numbers.values())
        if most >= vocabulary(run.dense):
            raise ModelBroken(
                f"{run.loaded.name}: the tokenizer has tokens up to {most}, and the model knows 0 to "
                f"{vocabulary(run.dense) - 1}; use the tokenizer that belongs to the model"
            )
        self._chosen(run.loaded, pieces, Counter())

    def run(self, run: Run) -> Run:
        """The run with a dense model of fewer tokens, and data in its tokens."""
        if isinstance(run.source, Tensor):
            raise DataUnreadable(
                f"token ids in memory cannot be read in other tokens; give texts, or leave {option('vocab')} out"
            )
        assert run.data is not None
        with run.timed("vocabulary"):
            return self.shrunk(run, self._counts(run), self._documents(run))

    def shrunk(self, run: Run, counts: Counter[int], documents: list[Document]) -> Run:
        """The same by counts that are known; pieces are refitted on `documents`."""
        assert run.data is not None
        pieces = pieces_of(run.loaded.processor)
        smaller, order = self.smaller(run.loaded, pieces, counts)
        data = read_in(smaller, run)
        refit = None
        if self.refit:
            smaller, refit = refitted(run.loaded, smaller, order, documents, run.data)
        facts = {
            **self._facts(run, smaller, pieces, order), "counted": sum(counts.values()),
            "on": source_names(run.data.name if self.data is None else str(self.data)),
            "covered_there": covered(counts, order), "refit": refit,
        }  # fmt: skip
        shrunk = replace(run, loaded=smaller, model=smaller.model, data=data, original=run.loaded)
        return shrunk.reporting(vocabulary=facts)

    def smaller(self, loaded: Loaded, pieces: Pieces, counts: Counter[int]) -> tuple[Loaded, list[int]]:
        """Model and tokenizer with fewer tokens, and which these are; nothing is refitted."""
        order = in_new_order(pieces, self._chosen(loaded, pieces, counts))
        tokenizer = smaller_tokenizer(loaded.processor, pieces, order)
        return replace(loaded, model=with_tokens(loaded.model, order), processor=tokenizer), order

    def _documents(self, run: Run) -> list[Document]:
        """Text to refit pieces on: that of the counts, or a few million characters of it."""
        assert run.data is not None
        documents = documents_of(self.data, run.data.reading["columns"]) if self.data else run.data.texts["fit"]
        return first_characters(documents, REFITTED)

    def _counts(self, run: Run) -> Counter[int]:
        if self.data is None:
            return tokens_in_batches(run.splits["fit"])
        assert run.data is not None
        return tokens_in_texts(documents_of(self.data, run.data.reading["columns"]), run.loaded.processor)

    def _chosen(self, loaded: Loaded, pieces: Pieces, counts: Counter[int]) -> list[int]:
        known = {number: counts[number] for number in pieces.by_use}
        always = {number for number in named_tokens(loaded.model) if number in known}
        return choose_tokens(known, always | pieces.always, pieces.parts, self.wanted)

    def _facts(self, run: Run, smaller: Loaded, pieces: Pieces, order: list[int]) -> dict[str, Any]:
        """What a report says, measured on texts that were not counted."""
        assert run.data is not None
        texts = run.data.texts["report"]
        before = list(encoded(texts, run.loaded.processor))
        after = sum(len(numbers) for numbers in encoded(texts, smaller.processor))
        counts = Counter(number for numbers in before for number in numbers)
        return {
            "kind": pieces.kind, "keep": len(order), "of": len(pieces), "covered": covered(counts, order),
            "texts": len(before), "tokens_per_text": [counts.total() / len(before), after / len(before)],
            "bytes": [table_bytes(each.model, run.loaded.dtype) for each in (run.loaded, smaller)],
        }  # fmt: skip


def read_in(smaller: Loaded, run: Run) -> Data:
    """The data of a run, read again in the tokens of another tokenizer: the same documents in the same splits."""
    assert run.data is not None
    how = run.data.reading
    same = {name: how[name] for name in ("seq_len", "tokens", "samples", "columns", "purpose", "broad")}
    asked = Reading(**same, seed=run.data.seed)
    again = gather(run.source, smaller.model, smaller.processor, describe(smaller.model), asked)
    return replace(again, notes=run.data.notes)

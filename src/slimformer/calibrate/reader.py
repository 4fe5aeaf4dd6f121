"""Documents as batches for one model: images, recordings, windows of running text, or rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from slimformer.calibrate.captions import TOGETHER, captioned_batches
from slimformer.calibrate.document import Document
from slimformer.calibrate.images import image_batches
from slimformer.calibrate.pairs import pair_batches
from slimformer.calibrate.sounds import feature_batches, wave_batches
from slimformer.calibrate.splits import cut_documents, one_of_each
from slimformer.calibrate.text import Batch, label_numbers, packed_batches, padded_batches, unread
from slimformer.models import Architecture
from slimformer.models.architecture import reads_windows
from slimformer.models.description import sides as sides

SHARE = {"fit": 1.0, "select": 1 / 3, "report": 1 / 2, "certify": 1 / 2}  # of the tokens to fit on
CHARACTERS = 4  # per token, about: how long a passage is cut for an encoder that reads seq_len tokens


@dataclass(frozen=True)
class Reader:
    """One model, what makes inputs for it, the length it reads and how many rows go through it together."""

    model: PreTrainedModel
    processor: Any
    architecture: Architecture
    length: int
    batch_size: int

    @property
    def windows(self) -> bool:
        """Is running text read in windows, without padding?"""
        return reads_windows(self.model, self.architecture.family)

    @property
    def label_ids(self) -> dict[str, int]:
        """The numbers of named labels."""
        return label_numbers(self.model)

    def batches(self, documents: Sequence[Document], tokens: int) -> list[Batch]:
        """One split, of so many tokens (positions of images and sounds) at most."""
        if self.architecture.family.image:
            config = self.model.config
            return image_batches(
                documents[: max(1, tokens // self.length)], self.processor, batch_size=self.batch_size,
                image_size=sides(config.image_size)[0], channels=config.num_channels, label_ids=self.label_ids,
            )  # fmt: skip
        length, size = self.length, self.batch_size
        if self.architecture.family.towers:
            return captioned_batches(
                documents[: max(2, tokens // length)], self.model, self.processor, batch_size=max(size, TOGETHER)
            )
        if self.architecture.family.unit == "positions":
            return wave_batches(documents, self.model, self.processor, positions=length, tokens=tokens, batch_size=size)
        if self.architecture.family.sound:
            return feature_batches(
                documents, self.model, self.processor, seq_len=length, tokens=tokens, batch_size=size
            )
        if self.architecture.family.reads_pairs:
            return pair_batches(
                cut_documents(documents, size=length * CHARACTERS), self.model, self.processor, seq_len=length,
                tokens=tokens, batch_size=size,
            )  # fmt: skip
        if self.windows:
            return packed_batches(documents, self.processor, seq_len=length, tokens=tokens, batch_size=size)
        passages = cut_documents(documents, size=length * CHARACTERS)
        return padded_batches(
            passages,
            self.processor,
            seq_len=length,
            tokens=tokens,
            batch_size=size,
            label_ids=self.label_ids,
        )

    def one_row_each(self, parts: dict[str, list[Document]], tokens: int) -> list[Batch]:
        """The certify split: one row for each document, its first `length` tokens, so that rows are independent draws.

        A certificate needs documents more than tokens, so what fit and select left unread is certified on as well.
        """
        if self.architecture.family.reads_pairs:
            return self.batches(one_of_each(parts["certify"]), int(SHARE["certify"] * tokens))
        seq_len = None if self.windows else self.length
        left = [
            document
            for split in ("fit", "select")
            for document in unread(parts[split], self.processor, tokens=int(SHARE[split] * tokens), seq_len=seq_len)
        ]
        # padding on the left would move every token to other positions
        alone = self.windows and self.processor.padding_side == "left"
        return padded_batches(
            one_of_each([*parts["certify"], *left]), self.processor, seq_len=self.length,
            tokens=int(SHARE["certify"] * tokens), batch_size=1 if alone else self.batch_size, label_ids=self.label_ids,
        )  # fmt: skip

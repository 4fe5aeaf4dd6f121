"""A batch: what a model is called with, and which of its positions are real."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slimformer.messages.short import Short

ROWWISE = ("mask", "labels", "documents", "targets")  # what a batch has for every row besides inputs


@dataclass(frozen=True, repr=False)
class Batch(Short):
    """What a model is called with, on the CPU until `to` is called."""

    inputs: dict[str, Tensor]  # input_ids, attention_mask, token_type_ids; or pixel_values; and decoder_input_ids
    mask: Tensor | None  # bool, batch × length, True where a position of the outputs is real; None for images
    labels: Tensor | None = None
    documents: Tensor | None = None  # number of the document of every row, or of every position; None: rows are apart
    targets: Tensor | None = None  # what each position is to predict, where that is not the token after it

    def facts(self) -> dict[str, str]:
        """Shapes, never values."""
        shapes = {name: " × ".join(map(str, tensor.shape)) for name, tensor in self.inputs.items()}
        labelled = "" if self.labels is None else ", with labels"
        return {"": f"{self.tokens:,} {'images' if self.mask is None else 'tokens'}{labelled}", **shapes}

    @property
    def tokens(self) -> int:
        """Real positions; for images their number, since patches are the business of the model."""
        if self.mask is not None:
            return int(self.mask.sum())
        return len(next(iter(self.inputs.values())))

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        mask = None if self.mask is None else self.mask.to(device)
        labels = None if self.labels is None else self.labels.to(device)
        targets = None if self.targets is None else self.targets.to(device)
        return replace(self, inputs=inputs, mask=mask, labels=labels, targets=targets)

    def rows(self, part: slice) -> Batch:
        """Some of the rows."""
        cut = {name: None if (each := getattr(self, name)) is None else each[part] for name in ROWWISE}
        return Batch({name: tensor[part] for name, tensor in self.inputs.items()}, **cut)

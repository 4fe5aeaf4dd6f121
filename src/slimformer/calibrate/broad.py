"""Broad text beside a user's own: fitted a little, chosen on, and measured on.

Least squares on a narrow text may ruin every direction that text does not show. So half as much broad text again is
fitted beside the user's own, and the split on which everything is chosen (sizes, ranks, corrections) gets text of
sources that nobody fitted. Some more sources are only measured on: they say what a cut does to other text.
docs/calibration-data.md has what that gains and costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slimformer.calibrate.builtin import TEXT_KINDS, Role, builtin_documents
from slimformer.calibrate.document import Document, mix_documents
from slimformer.calibrate.text import Batch, token_batches

FIT_SHARE = 0.5  # tokens of broad text to fit on, for every token of the user's own
SELECT_SHARE = 0.5  # the same for the split that choices are made on
OTHER_SHARE = 1 / 16  # the same for every source that is only measured on


def broad_documents(role: Role, *, rows: bool) -> list[Document]:
    """Built-in text of every kind in equal shares; for models that read rows, half of it single sentences."""
    passages, sentences = builtin_documents(TEXT_KINDS, role), builtin_documents(("sentences",), role) if rows else []
    return mix_documents([passages, sentences]) if sentences else passages


def other_documents(*, rows: bool) -> dict[str, list[Document]]:
    """Sources that are neither fitted nor chosen on, by name."""
    by_source: dict[str, list[Document]] = {}
    for document in broad_documents("other", rows=rows):
        by_source.setdefault(str(document.source), []).append(document)
    return by_source


def shuffled(parts: Sequence[Sequence[Batch]], *, seed: int, batch_size: int) -> list[Batch]:
    """The batches of several texts as one list in which each is met early: whoever reads the beginning reads all.

    Windows of one length are dealt one by one; rows, which are padded together, stay in their batches.
    """
    batches = [batch for part in parts for batch in part]
    generator = torch.Generator().manual_seed(seed)
    if batches and _are_windows(batches):
        rows = torch.cat([batch.inputs["input_ids"] for batch in batches])
        return token_batches(rows[torch.randperm(len(rows), generator=generator)], batch_size)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _are_windows(batches: Sequence[Batch]) -> bool:
    lengths = {batch.inputs["input_ids"].shape[1] for batch in batches}
    plain = all(batch.labels is None and set(batch.inputs) == {"input_ids", "attention_mask"} for batch in batches)
    return plain and len(lengths) == 1 and all(batch.mask is None or bool(batch.mask.all()) for batch in batches)

"""From whatever a user calls data to batches in four splits, ready for one model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.documents import Document, Source
from slimformer.calibrate.images import image_batches, read_images
from slimformer.calibrate.splits import SPLITS, cut_documents, split_documents
from slimformer.calibrate.tasks import read_data
from slimformer.calibrate.text import Batch, batches, data_hash, token_batches
from slimformer.errors import DataNotFound, TooFewTokens
from slimformer.models import Architecture

TOKENS = 32_768  # to fit on; the other splits get a share of it
SHARE = {"fit": 1.0, "select": 1 / 3, "report": 1 / 2, "certify": 1 / 4}
CHARACTERS = 4  # per token, about: how long a passage is cut for an encoder that reads seq_len tokens


@dataclass(frozen=True)
class Data:
    """Batches by split, and what is needed to say where they came from."""

    splits: dict[str, list[Batch]]
    name: str
    hash: str
    seed: int
    seq_len: int

    @property
    def tokens(self) -> dict[str, int]:
        return {split: sum(batch.tokens for batch in part) for split, part in self.splits.items()}


def sequence_length(model: PreTrainedModel, architecture: Architecture, asked: int | None) -> int:
    """The length to calibrate at and to count MACs for: 512 for decoders, 128 for encoders, patches for images."""
    config = model.config
    if architecture.family.image:
        return (config.image_size // config.patch_size) ** 2 + 1
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512
    return min(asked or (512 if architecture.family.causal else 128), int(limit))


def gather(
    source: Source | Tensor,
    model: PreTrainedModel,
    processor: Any,
    architecture: Architecture,
    *,
    seq_len: int | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 8,
) -> Data:
    """Read `source` and deal it to the four splits. `tokens` limits what is fitted on, `samples` the documents read."""
    length = sequence_length(model, architecture, seq_len)
    if isinstance(source, Tensor):
        return _from_ids(source, length, seed, batch_size)
    label_ids = {str(name): int(i) for name, i in (getattr(model.config, "label2id", None) or {}).items()}
    if architecture.family.image:
        documents = read_images(_folder(source), samples=samples, seed=seed)
    else:
        documents = read_data(source, columns=columns, limit=samples)
    parts = split_documents(documents, seed=seed)
    fit = tokens or TOKENS
    splits = {
        split: _image_part(
            parts[split], model, processor, max(1, int(SHARE[split] * fit / length)), batch_size, label_ids
        )
        if architecture.family.image
        else _text_part(parts[split], processor, architecture, length, int(SHARE[split] * fit), batch_size, label_ids)
        for split in SPLITS
    }
    _require_all(splits)
    return Data(splits, describe_source(source), data_hash(documents), seed, length)


def describe_source(source: Any) -> str:
    """A short name for reports; never the data themselves."""
    if isinstance(source, str | Path):
        return str(source)
    return f"{type(source).__name__} in memory"


def _text_part(
    documents: Sequence[Document], tokenizer: Any, architecture: Architecture, length: int, tokens: int, batch_size:
    int, label_ids: dict[str, int],
) -> list[Batch]:  # fmt: skip
    causal = architecture.family.causal
    if not causal:
        documents = cut_documents(documents, size=length * CHARACTERS)
    return batches(
        documents,
        tokenizer,
        causal=causal,
        seq_len=length,
        tokens=tokens,
        batch_size=batch_size,
        label_ids=label_ids,
    )


def _image_part(
    documents: Sequence[Document], model: PreTrainedModel, processor: Any, images: int, batch_size: int,
    label_ids: dict[str, int],
) -> list[Batch]:  # fmt: skip
    config = model.config
    return image_batches(
        documents[:images], processor, batch_size=batch_size,
        image_size=config.image_size, channels=config.num_channels, label_ids=label_ids,
    )  # fmt: skip


def _folder(source: Any) -> str | Path:
    if isinstance(source, str | Path) and str(source) != "builtin":
        return source
    raise DataNotFound("a vision model is calibrated on images; give a folder of them with --data")


def _from_ids(ids: Tensor, length: int, seed: int, batch_size: int) -> Data:
    """Token ids, sequences × length: the rows are dealt to the splits."""
    if ids.ndim != 2 or len(ids) < len(SPLITS):
        raise TooFewTokens(
            f"token ids must be sequences × length with at least {len(SPLITS)} sequences; got {tuple(ids.shape)}"
        )
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    n = len(ids)
    cuts = [0, max(1, int(0.55 * n)), max(2, int(0.75 * n)), max(3, int(0.9 * n)), n]
    splits = {
        split: token_batches(ids[order[a:b]][:, :length], batch_size)
        for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)
    }
    digest = hashlib.sha256(ids.cpu().contiguous().numpy().tobytes()).hexdigest()
    return Data(splits, "token ids in memory", digest, seed, min(length, ids.shape[1]))


def _require_all(splits: dict[str, list[Batch]]) -> None:
    empty = [split for split, part in splits.items() if not sum(batch.tokens for batch in part)]
    if empty:
        raise TooFewTokens(f"the data leave nothing for {', '.join(empty)}; give more text, or a smaller --seq-len")

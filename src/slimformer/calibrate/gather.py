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
from slimformer.calibrate.splits import SPLITS, cut_documents, one_of_each, split_documents
from slimformer.calibrate.tasks import Purpose, read_data
from slimformer.calibrate.text import Batch, batches, data_hash, padded_batches, token_batches, unread
from slimformer.errors import DataNotFound, DataUnreadable, SequenceTooLong, TooFewTokens
from slimformer.models import Architecture
from slimformer.models.architecture import reads_windows
from slimformer.short import Short
from slimformer.words import option

TOKENS = 32_768  # to fit on; the other splits get a share of it
SHARE = {"fit": 1.0, "select": 1 / 3, "report": 1 / 2, "certify": 1 / 2}
CHARACTERS = 4  # per token, about: how long a passage is cut for an encoder that reads seq_len tokens


@dataclass(frozen=True, repr=False)
class Data(Short):
    """Batches by split, and what is needed to say where they came from.

    `windows`: all splits but *certify* are windows of running text, which has a row for each document.
    """

    splits: dict[str, list[Batch]]
    name: str
    hash: str
    seed: int
    seq_len: int
    windows: bool = False

    def facts(self) -> dict[str, str]:
        """Where it came from, and how much there is in every split."""
        batches = ", ".join(f"{split} {len(part):,}" for split, part in self.splits.items())
        tokens = ", ".join(f"{split} {n:,}" for split, n in self.tokens.items())
        return {"": self.name, "batches": batches, "tokens": tokens, "sequence length": f"{self.seq_len:,}"}

    @property
    def tokens(self) -> dict[str, int]:
        return {split: sum(batch.tokens for batch in part) for split, part in self.splits.items()}


def sequence_length(model: PreTrainedModel, architecture: Architecture, asked: int | None) -> int:
    """The length to calibrate at and to count MACs for: 512 for decoders, 128 for encoders, patches for images."""
    config = model.config
    if architecture.family.image:
        height, width = _sides(config.image_size)
        rows, columns = _sides(config.patch_size)
        patches = (height // rows) * (width // columns) + (getattr(config, "pool", "cls") == "cls")
        if asked not in (None, patches):
            raise SequenceTooLong(
                f"a sequence length of {asked:,} was asked for, and an image is always {patches:,} positions to this "
                "model; leave it out"
            )
        return patches
    most = positions(config)
    if asked is not None and asked > most:
        raise SequenceTooLong(
            f"a sequence length of {asked:,} was asked for, and the model has {most:,} positions; give {most} or less"
        )
    return asked or min(512 if architecture.family.causal else 128, most)


def positions(config: Any) -> int:
    """How many tokens the model can read at once; RoBERTa spends the first positions on padding."""
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512
    return int(most) - (config.pad_token_id + 1 if config.model_type == "roberta" else 0)


def vocabulary(model: PreTrainedModel) -> int:
    """How many tokens the model knows; tokenizers may know more or fewer."""
    table: Any = model.get_input_embeddings()
    return int(table.weight.shape[0])


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
    purpose: Purpose = "calibration",
    batch_size: int = 8,
) -> Data:
    """Read `source` and deal it to the four splits.

    `tokens` limits what is fitted on, `samples` the documents read, `purpose` says which part of a named data set.
    """
    length = sequence_length(model, architecture, seq_len)
    family = architecture.family
    in_rows = family.causal and not reads_windows(model, family)
    # without a padding token a decoder cannot tell where a row ends, so it reads one at a time
    batch_size = 1 if in_rows and model.config.pad_token_id is None else batch_size
    if isinstance(source, Tensor):
        data = _from_ids(source, architecture, length, tokens=tokens, samples=samples, seed=seed, batch_size=batch_size)
    else:
        documents = _documents(source, architecture, processor, columns, samples, seed, purpose)
        parts = split_documents(documents, seed=seed)
        splits = {
            split: _batches(
                parts[split], model, processor, architecture, length, int(share * (tokens or TOKENS)), batch_size
            )
            for split, share in SHARE.items()
        }
        if not family.image:
            splits["certify"] = _one_row_each(
                parts, model, processor, architecture, length, tokens or TOKENS, batch_size
            )
        windows = reads_windows(model, family)
        data = Data(splits, describe_source(source), data_hash(documents), seed, length, windows)
    _require_all(data.splits, least=1 if family.image else 2)
    _require_readable(data.splits, model, architecture)
    return data


def describe_source(source: Any) -> str:
    """A short name for reports; never the data themselves."""
    if isinstance(source, str | Path):
        return str(source)
    if isinstance(source, Tensor):
        return "token ids in memory"
    return f"{type(source).__name__} in memory"


def _documents(
    source: Source, architecture: Architecture, processor: Any, columns: Sequence[str] | None, samples: int | None,
    seed: int, purpose: Purpose,
) -> list[Document]:  # fmt: skip
    if isinstance(source, str) and not source.strip():
        raise DataNotFound("the name of the data is empty; give a file, or builtin")
    if architecture.family.image:
        return read_images(_folder(source), samples=samples, seed=seed)
    if processor is None:
        raise DataUnreadable(
            "there is no tokenizer with the model, so it cannot read text; put its tokenizer.json beside config.json "
            "(from Python: give a tokenizer as `processor`, or token ids as data)"
        )
    return read_data(source, columns=columns, limit=samples, split=purpose)


def _batches(
    documents: Sequence[Document], model: PreTrainedModel, processor: Any, architecture: Architecture, length: int,
    tokens: int, batch_size: int,
) -> list[Batch]:  # fmt: skip
    """One split for one model: images, windows of running text, or rows."""
    config = model.config
    label_ids = {str(name): int(i) for name, i in (getattr(config, "label2id", None) or {}).items()}
    if architecture.family.image:
        size = _sides(config.image_size)[0]
        return image_batches(
            documents[: max(1, tokens // length)], processor, batch_size=batch_size,
            image_size=size, channels=config.num_channels, label_ids=label_ids,
        )  # fmt: skip
    windows = reads_windows(model, architecture.family)
    passages = documents if windows else cut_documents(documents, size=length * CHARACTERS)
    return batches(
        passages, processor, windows=windows, seq_len=length, tokens=tokens, batch_size=batch_size, label_ids=label_ids
    )


def _one_row_each(
    parts: dict[str, list[Document]], model: PreTrainedModel, processor: Any, architecture: Architecture, length: int,
    tokens: int, batch_size: int,
) -> list[Batch]:  # fmt: skip
    """The certify split: one row for each document, its first `length` tokens, so that rows are independent draws.

    A certificate needs documents more than tokens, so what fit and select left unread is certified on as well.
    """
    windows = reads_windows(model, architecture.family)
    left = [
        document
        for split in ("fit", "select")
        for document in unread(
            parts[split], processor, tokens=int(SHARE[split] * tokens), seq_len=None if windows else length
        )
    ]
    if windows and processor.padding_side == "left":
        batch_size = 1  # padding on the left would move every token to other positions
    label_ids = {str(name): int(i) for name, i in (getattr(model.config, "label2id", None) or {}).items()}
    return padded_batches(
        one_of_each([*parts["certify"], *left]), processor, seq_len=length, tokens=int(SHARE["certify"] * tokens),
        batch_size=batch_size, label_ids=label_ids,
    )  # fmt: skip


def _sides(size: Any) -> tuple[int, int]:
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) else (int(size), int(size))


def _folder(source: Any) -> str | Path:
    if not isinstance(source, str | Path) or str(source) == "builtin":
        raise DataNotFound(f"a vision model is calibrated on images; give a folder of them with {option('data')}")
    if Path(source).is_file():
        raise DataUnreadable(f"{source} is a file; a vision model is calibrated on images: give a folder of them")
    return source


def _from_ids(
    ids: Tensor, architecture: Architecture, length: int, *, tokens: int | None, samples: int | None, seed: int,
    batch_size: int,
) -> Data:  # fmt: skip
    """Token ids, sequences × length: the rows are dealt to the splits."""
    if architecture.family.image:
        raise DataUnreadable("a vision model is calibrated on images; give a folder of them instead of a tensor")
    if ids.ndim != 2 or len(ids) < len(SPLITS) or ids.shape[1] < 2:
        raise TooFewTokens(f"token ids must be sequences × length, at least {len(SPLITS)} × 2; got {tuple(ids.shape)}")
    length = min(length, ids.shape[1])
    digest = hashlib.sha256(ids.cpu().contiguous().numpy().tobytes()).hexdigest()
    name, ids = describe_source(ids), _each_once(ids)
    rows = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))][:samples, :length]
    n = len(rows)
    shares = ((1, 0.55), (2, 0.75), (3, 0.9))
    cuts = [0, *(max(i, min(int(share * n), n - len(SPLITS) + i)) for i, share in shares), n]  # no split is empty
    most = {split: None if tokens is None else max(1, int(share * tokens) // length) for split, share in SHARE.items()}
    splits = {
        split: token_batches(rows[a:b][: most[split]], batch_size)
        for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)
    }
    return Data(splits, name, digest, seed, length)


def _each_once(ids: Tensor) -> Tensor:
    """Every row once, in the order they came: the same row in two splits would be measured where it was fitted."""
    first = {row: i for i, row in reversed(list(enumerate(map(tuple, ids.tolist()))))}
    if len(first) < len(SPLITS):
        raise TooFewTokens(f"{len(ids):,} rows of token ids were given, {len(first):,} of them different; give more")
    return ids[sorted(first.values())]


def _require_all(splits: dict[str, list[Batch]], *, least: int) -> None:
    """Every split must have something to measure; one token predicts nothing."""
    found = {split: sum(batch.tokens for batch in part) for split, part in splits.items()}
    empty = [split for split, tokens in found.items() if tokens < least]
    if empty:
        raise TooFewTokens(
            f"the data leave nothing for {', '.join(empty)}; give more data, or raise the limits on tokens and samples"
        )


def _require_readable(splits: dict[str, list[Batch]], model: PreTrainedModel, architecture: Architecture) -> None:
    """Refuse what a tokenizer or image processor of another model makes, before it fails deep inside this one."""
    inputs = [batch.inputs for part in splits.values() for batch in part]
    if architecture.family.image:
        asked = (model.config.num_channels, *_sides(model.config.image_size))
        found = {tuple(given["pixel_values"].shape[1:]) for given in inputs}
        if found != {asked}:
            other = "×".join(map(str, next(iter(found - {asked}))))
            raise DataUnreadable(
                f"the image processor makes images of {other}, the model reads {'×'.join(map(str, asked))}; "
                "use the processor that belongs to the model"
            )
        return
    ids = [given["input_ids"] for given in inputs]
    least, most = min(int(part.min()) for part in ids), max(int(part.max()) for part in ids)
    if least < 0 or most >= vocabulary(model):
        raise DataUnreadable(
            f"the data hold tokens {least} to {most}, and the model knows 0 to {vocabulary(model) - 1}; "
            "use the tokenizer that belongs to the model"
        )

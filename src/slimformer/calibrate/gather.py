"""From whatever a user calls data to batches in four splits, ready for one model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.broad import (
    FIT_SHARE,
    OTHER_SHARE,
    SELECT_SHARE,
    broad_documents,
    other_documents,
    pieces_of,
    shares_nothing_with,
    shuffled,
)
from slimformer.calibrate.builtin import BUILTIN, names_builtin
from slimformer.calibrate.document import mix_documents
from slimformer.calibrate.documents import SELF, Document, Source, Unnamed, named_sources
from slimformer.calibrate.images import image_batches, read_images
from slimformer.calibrate.own_images import own_images
from slimformer.calibrate.own_text import own_documents
from slimformer.calibrate.splits import SHARES, SPLITS, cut_documents, numbered, one_of_each, split_documents
from slimformer.calibrate.tasks import TASKS, Purpose, read_data, require_there, spread
from slimformer.calibrate.text import Batch, batches, data_hash, in_turn, padded_batches, token_batches, unread
from slimformer.errors import DataNotFound, DataUnreadable, SequenceTooLong, TooFewTokens
from slimformer.messages.short import Short
from slimformer.messages.words import option
from slimformer.models import Architecture
from slimformer.models.architecture import reads_examples, reads_windows

TOKENS = 32_768  # to fit on; the other splits get a share of it
ROW_TOKENS = 65_536  # for encoders of text, which are small for their widths, and lose most with fewer
SHARE = {"fit": 1.0, "select": 1 / 3, "report": 1 / 2, "certify": 1 / 2}
CHARACTERS = 4  # per token, about: how long a passage is cut for an encoder that reads seq_len tokens


@dataclass(frozen=True, repr=False)
class Data(Short):
    """Batches by split, and what is needed to say where they came from.

    `windows`: all splits but *certify* are windows of running text, which has a row for each document. `unit` is what
    one of its texts is to the model. `notes` say how files were understood, `reading` how to read the same again.
    `other` is text of sources that were neither fitted nor chosen on, by name, and `mixed` what was fitted beside the
    user's own (`calibrate.broad`).
    """

    splits: dict[str, list[Batch]]
    name: str
    hash: str
    seed: int
    seq_len: int
    windows: bool = False
    unit: str = "document"
    notes: tuple[str, ...] = ()
    reading: dict[str, Any] = field(default_factory=dict)
    other: dict[str, list[Batch]] = field(default_factory=dict)
    mixed: str | None = None
    own: dict[str, list[Batch]] = field(default_factory=dict)  # fit and select without the broad text

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
    broad: bool = False,
    batch_size: int = 8,
) -> Data:
    """Read `source` and deal it to the four splits.

    `tokens` limits what is fitted on, `samples` the documents read, `purpose` says which part of a named data set.
    With `broad`, text to calibrate on gets broad text beside it (`calibrate.broad`).
    """
    length = sequence_length(model, architecture, seq_len)
    family = architecture.family
    in_rows = family.causal and not reads_windows(model, family)
    # without a padding token a decoder cannot tell where a row ends, so it reads one at a time
    batch_size = 1 if in_rows and model.config.pad_token_id is None else batch_size
    notes: list[str] = []
    source = source if isinstance(source, str | Path | Tensor) else list(source)  # what gives texts gives them once
    most = tokens or (TOKENS if reads_windows(model, family) or family.image else ROW_TOKENS)
    if isinstance(source, Tensor):
        data = _from_ids(source, architecture, length, tokens=tokens, samples=samples, seed=seed, batch_size=batch_size)
    else:
        read = partial(read_data, columns=columns, limit=samples, split=purpose, say=notes.append)
        wanted = int(most / SHARES[0])
        documents = _documents(source, model, architecture, processor, read, samples, seed, wanted)
        parts = numbered(split_documents(documents, seed=seed))
        splits = {
            split: _batches(parts[split], model, processor, architecture, length, int(share * most), batch_size)
            for split, share in SHARE.items()
        }
        if not family.image:
            splits["certify"] = _one_row_each(parts, model, processor, architecture, length, most, batch_size)
        windows = reads_windows(model, family)
        if windows:
            splits["report"] = in_turn(splits["report"])
        unit = "image" if family.image else "example" if reads_examples(model, family) else "document"
        data = Data(splits, describe_source(source), data_hash(documents), seed, length, windows, unit, tuple(notes))
        if broad and not family.image:
            _require_all(data.splits, least=2)  # of the user's own text
            same = {"model": model, "processor": processor, "architecture": architecture, "length": length}
            make = partial(_batches, **same, batch_size=batch_size)
            builtin = BUILTIN in (named_sources(source) or ())
            data = _with_broad_text(data, documents, make, most, builtin=builtin, batch_size=batch_size)
    _require_all(data.splits, least=1 if family.image else 2)
    _require_readable(data.splits, model, architecture)
    asked = {"tokens": tokens, "samples": samples, "columns": list(columns) if columns else None, "purpose": purpose}
    named = not isinstance(source, Unnamed)
    facts = {"sources": places(source), "named": named, "seq_len": length, "broad": broad}
    return replace(data, reading=facts | asked)


def _with_broad_text(
    data: Data, documents: Sequence[Document], make: Callable[..., list[Batch]], tokens: int, *, builtin: bool,
    batch_size: int,
) -> Data:  # fmt: skip
    """The data with broad text fitted beside them, chosen on and measured on, without what the data hold themselves.

    Where all of the `builtin` text is among the sources, no more of it is fitted: what was held out of it stays so.
    """
    allowed, own = shares_nothing_with(documents), data.splits
    broad = partial(broad_documents, rows=not data.windows, allowed=allowed)
    parts = {"select": [own["select"], make(broad("select"), tokens=int(SELECT_SHARE * SHARE["select"] * tokens))]}
    if not builtin:
        parts["fit"] = [own["fit"], make(broad("fit"), tokens=int(FIT_SHARE * tokens))]
    mixed = {split: shuffled(part, seed=data.seed, batch_size=batch_size) for split, part in parts.items()}
    amount = max(int(OTHER_SHARE * tokens), 2 * data.seq_len)
    others = other_documents(rows=not data.windows, allowed=allowed)
    pieces = {name: pieces_of(each, characters=CHARACTERS * amount) for name, each in others.items()}
    other = {name: batches for name, each in pieces.items() if (batches := make(each, tokens=amount))}
    alone = {} if builtin else {split: own[split] for split in ("fit", "select")}
    return replace(data, splits=own | mixed, other=other, mixed=None if builtin else BUILTIN, own=alone)


def describe_source(source: Any) -> str:
    """A short name for reports; never the data themselves."""
    if isinstance(source, Tensor):
        return "token ids in memory"
    names = None if isinstance(source, str | Path) else named_sources(source)
    if isinstance(source, str | Path) or names:
        return ",".join(map(str, names or [source]))
    return f"{type(source).__name__} in memory"


def places(source: Any) -> list[str] | None:
    """Where the data are, for this machine and from any folder of it; None for what is in memory."""
    names = None if isinstance(source, Tensor) else named_sources(source)
    if names is None:
        return None
    return [str(name) if _names_no_place(name) else str(Path(name).resolve()) for name in names]


def _names_no_place(name: str | Path) -> bool:
    """Is a source known by its name alone, though a folder here may be called the same?"""
    known = names_builtin(name) or name == SELF or (name in TASKS and not Path(name).is_file())
    return known or not Path(name).exists()


def _documents(
    source: Source, model: PreTrainedModel, architecture: Architecture, processor: Any,
    read: Callable[..., list[Document]], samples: int | None, seed: int, wanted: int,
) -> list[Document]:  # fmt: skip
    """Documents to deal; `wanted` is how many tokens a model that writes its own should write."""
    if isinstance(source, str):
        require_there(source)
    if architecture.family.image:
        return read_images(_folder(source, model.config, wanted, seed), samples=samples, seed=seed)
    if processor is None:
        raise DataUnreadable(
            "there is no tokenizer with the model, so it cannot read text; put its tokenizer.json beside config.json "
            "(from Python: give a tokenizer as `processor`, or token ids as data)"
        )
    read = partial(read, rows=reads_examples(model, architecture.family))
    made: dict[str, Callable[[], list[Document]]] = {
        SELF: partial(own_documents, model, processor, tokens=wanted, seed=seed)
    }
    if not reads_windows(model, architecture.family):
        made[BUILTIN] = partial(broad_documents, "fit", rows=True)
    names = named_sources(source if isinstance(source, str | Path) else list(source)) or []
    if not any(name in made for name in names):
        return read(source)
    return spread(mix_documents([made[name]() if name in made else read(name) for name in names]), samples)


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


def _folder(source: Any, config: Any, wanted: int, seed: int) -> str | Path:
    """The folder of images that is meant; drawn ones, so many positions of them, where there are none."""
    if source == SELF and not Path(SELF).is_dir():
        (height, width), (rows, columns) = _sides(config.image_size), _sides(config.patch_size)
        count = -(-wanted // ((height // rows) * (width // columns)))
        return own_images(count, channels=config.num_channels, sides=(height, width), seed=seed)
    if not isinstance(source, str | Path) or names_builtin(source):
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

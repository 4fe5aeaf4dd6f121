"""From whatever a user calls data to batches in four splits, ready for one model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
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
from slimformer.calibrate.captions import read_captioned
from slimformer.calibrate.document import mix_documents
from slimformer.calibrate.documents import SELF, Document, Source, Unnamed, Weighted, named_sources, weights_of
from slimformer.calibrate.images import read_images
from slimformer.calibrate.own_images import own_images
from slimformer.calibrate.own_pairs import own_pairs
from slimformer.calibrate.own_text import own_documents
from slimformer.calibrate.pairs import paired, writes
from slimformer.calibrate.reader import CHARACTERS, SHARE, Reader, sides
from slimformer.calibrate.recordings import recordings_meant, require_audible
from slimformer.calibrate.splits import SHARES, SPLITS, numbered, split_documents
from slimformer.calibrate.tasks import TASKS, Purpose, read_data, require_there, spread
from slimformer.calibrate.text import Batch, data_hash, in_turn, token_batches
from slimformer.errors import DataNotFound, DataUnreadable, SequenceTooLong, TooFewTokens
from slimformer.messages.short import Short
from slimformer.messages.words import option
from slimformer.models import Architecture, family_of
from slimformer.models.architecture import reads_examples, reads_windows

TOKENS = 32_768  # to fit on; the other splits get a share of it
WRITTEN = "texts without a target were sources; the model itself wrote the targets"
HEARD = "of recordings without a transcript the model itself wrote the targets"
REPEATED = "texts without a target were sources, and targets as well: the model has no head that writes"
COUNTABLE = 4_000_000  # characters in which tokens may be counted
SOUND_POSITIONS = 499  # ten seconds, as wav2vec 2.0 and HuBERT hear them
ROW_TOKENS = 65_536  # for encoders of text, which are small for their widths, and lose most with fewer


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
    texts: dict[str, list[Document]] = field(default_factory=dict)  # by split, for models that read other tokens
    other_texts: dict[str, list[Document]] = field(default_factory=dict)  # the same of `other`
    countable: list[Document] = field(default_factory=list)  # of *fit*, also what the batches had no room for

    def facts(self) -> dict[str, str]:
        """Where it came from, and how much there is in every split."""
        batches = ", ".join(f"{split} {len(part):,}" for split, part in self.splits.items())
        tokens = ", ".join(f"{split} {n:,}" for split, n in self.tokens.items())
        return {"": self.name, "batches": batches, "tokens": tokens, "sequence length": f"{self.seq_len:,}"}

    @property
    def tokens(self) -> dict[str, int]:
        return {split: sum(batch.tokens for batch in part) for split, part in self.splits.items()}


def sequence_length(model: PreTrainedModel, architecture: Architecture, length: int | None) -> int:
    """The length to calibrate at and to count MACs for: 512 for decoders, 128 for encoders, patches for images, ten
    seconds (of 50 positions) for encoders of sound, the positions of the text for two towers."""
    config = model.config
    if architecture.family.towers:
        most = int(config.text_config.max_position_embeddings)
        if length is not None and length > most:
            raise SequenceTooLong(
                f"a sequence length of {length:,} was asked for, and the tower of text has {most:,} positions; give "
                f"{most} or less"
            )
        return length or most
    if architecture.family.unit == "positions":
        return length or SOUND_POSITIONS
    if architecture.family.image:
        height, width = sides(config.image_size)
        rows, columns = sides(config.patch_size)
        patches = (height // rows) * (width // columns) + architecture.family.class_positions(config)
        if length not in (None, patches):
            raise SequenceTooLong(
                f"a sequence length of {length:,} was asked for, and an image is always {patches:,} positions to this "
                "model; leave it out"
            )
        return patches
    most = positions(config)
    if length is not None and length > most:
        raise SequenceTooLong(
            f"a sequence length of {length:,} was asked for, and the model has {most:,} positions; give {most} or less"
        )
    return length or min(512 if architecture.family.causal else 128, most)


def positions(config: Any) -> int:
    """How many tokens the model can read at once; RoBERTa, for one, spends the first positions on padding."""
    keys = ("max_position_embeddings", "n_positions", "max_target_positions")
    most = next((getattr(config, key) for key in keys if getattr(config, key, None)), 512)
    taken = config.model_type in family_of(config).positions_after_padding
    return int(most) - (config.pad_token_id + 1 if taken else 0)


def vocabulary(model: PreTrainedModel) -> int:
    """How many tokens the model knows; tokenizers may know more or fewer."""
    table: Any = model.get_input_embeddings()
    return int(table.weight.shape[0])


@dataclass(frozen=True)
class Reading:
    """What is asked of data. `tokens` limits what is fitted on, `samples` the documents read, `purpose` says which part
    of a named data set. With `broad`, text to calibrate on gets broad text beside it (`calibrate.broad`)."""

    seq_len: int | None = None
    tokens: int | None = None
    samples: int | None = None
    columns: Sequence[str] | None = None
    seed: int = 0
    purpose: Purpose = "calibration"
    broad: bool = False
    batch_size: int = 8


def gather(
    source: Source | Tensor,
    model: PreTrainedModel,
    processor: Any,
    architecture: Architecture,
    reading: Reading | None = None,
) -> Data:
    """Read `source` and deal it to the four splits."""
    request = reading or Reading()
    source = source if isinstance(source, str | Path | Tensor) else list(source)  # what gives texts gives them once
    family, windows = architecture.family, reads_windows(model, architecture.family)
    # without a padding token a decoder cannot tell where a row ends, so it reads one at a time
    one_by_one = family.causal and not windows and model.config.pad_token_id is None
    length = sequence_length(model, architecture, request.seq_len)
    reader = Reader(model, processor, architecture, length, 1 if one_by_one else request.batch_size)
    data = (
        _from_ids(source, reader, request) if isinstance(source, Tensor) else _from_documents(source, reader, request)
    )
    _require_all(data.splits, least=1 if family.unit != "tokens" else 2)
    _require_readable(data.splits, model, architecture)
    facts = {"sources": places(source), "named": not isinstance(source, Unnamed), "seq_len": length}
    facts |= {name: getattr(request, name) for name in ("tokens", "samples", "purpose")}
    facts |= {"broad": request.broad and family.unit == "tokens" and not family.sound}
    return replace(data, reading=facts | {"columns": list(request.columns) if request.columns else None})


def _from_documents(source: Source, reader: Reader, request: Reading) -> Data:
    """Texts, images or recordings: whole documents are dealt to the splits."""
    family, notes = reader.architecture.family, list[str]()
    files = family.image or family.sound or family.towers
    most = request.tokens or (TOKENS if reader.windows or files else ROW_TOKENS)
    documents = _documents(source, reader, request, int(most / SHARES[0]), notes)
    parts = numbered(split_documents(documents, seed=request.seed))
    splits = {split: reader.batches(parts[split], int(share * most)) for split, share in SHARE.items()}
    if not files:
        splits["certify"] = reader.one_row_each(parts, most)
    if reader.windows:
        splits["report"] = in_turn(splits["report"])
    pairs = family.reads_pairs
    examples = pairs or reads_examples(reader.model, family)
    unit = "image" if family.image else "recording" if family.sound else "example" if examples else "document"
    if pairs and any(document.pair is None for document in documents):
        notes.append(HEARD if family.sound else WRITTEN if writes(reader.model) else REPEATED)
    name, digest = describe_source(source), data_hash(documents)
    data = Data(splits, name, digest, request.seed, reader.length, reader.windows, unit, tuple(notes))
    if not files and not pairs:
        texts = {
            split: first_characters(parts[split], int(CHARACTERS * share * most)) for split, share in SHARE.items()
        }
        data = replace(data, texts=texts, countable=first_characters(parts["fit"], COUNTABLE))
    if not request.broad or files:
        return data
    _require_all(data.splits, least=2)  # of the user's own text
    names = named_sources(source if isinstance(source, str | Path) else list(source)) or ()
    return _with_broad_text(data, documents, reader, most, builtin=BUILTIN in names)


def _with_broad_text(data: Data, documents: Sequence[Document], reader: Reader, tokens: int, *, builtin: bool) -> Data:
    """The data with broad text fitted beside them, chosen on and measured on, without what the data hold themselves.

    Where all of the `builtin` text is among the sources, no more of it is fitted: what was held out of it stays so.
    """
    allowed, own = shares_nothing_with(documents), data.splits
    broad = partial(broad_documents, rows=not data.windows, allowed=allowed)
    parts = {"select": [own["select"], reader.batches(broad("select"), int(SELECT_SHARE * SHARE["select"] * tokens))]}
    if not builtin:
        parts["fit"] = [own["fit"], reader.batches(broad("fit"), int(FIT_SHARE * tokens))]
    mixed = {split: shuffled(part, seed=data.seed, batch_size=reader.batch_size) for split, part in parts.items()}
    amount = max(int(OTHER_SHARE * tokens), 2 * data.seq_len)
    others = other_documents(rows=not data.windows, allowed=allowed)
    pieces = {name: pieces_of(each, characters=CHARACTERS * amount) for name, each in others.items()}
    other = {name: batches for name, each in pieces.items() if (batches := reader.batches(each, amount))}
    alone = {} if builtin else {split: own[split] for split in ("fit", "select")}
    return replace(
        data, splits=own | mixed, other=other, mixed=None if builtin else BUILTIN, own=alone, other_texts=pieces
    )


def first_characters(documents: Iterable[Document], characters: int) -> list[Document]:
    """The first documents, until they hold so many characters; the last one is cut there."""
    chosen: list[Document] = []
    for document in documents:
        if characters <= 0:
            break
        chosen.append(replace(document, text=document.text[:characters]))
        characters -= len(chosen[-1].text) + len(document.pair or "")
    return chosen


def describe_source(source: Any) -> str:
    """A short name for reports; never the data themselves."""
    if isinstance(source, Tensor):
        return "token ids in memory"
    names = named_sources(source)
    if isinstance(source, str | Path) or names:
        return ",".join(_with_weight(name, str(name)) for name in names or [source])
    return f"{type(source).__name__} in memory"


def places(source: Any) -> list[str] | None:
    """Where the data are, for this machine and from any folder of it; None for what is in memory."""
    names = None if isinstance(source, Tensor) else named_sources(source)
    if names is None:
        return None
    return [_with_weight(name, str(name) if _names_no_place(name) else str(Path(name).resolve())) for name in names]


def _with_weight(name: Any, place: str) -> str:
    return f"{place}*{name.weight:g}" if isinstance(name, Weighted) else place


def _names_no_place(name: str | Path) -> bool:
    """Is a source known by its name alone, though a folder here may be called the same?"""
    known = names_builtin(name) or name == SELF or (name in TASKS and not Path(name).is_file())
    return known or not Path(name).exists()


def _documents(source: Source, reader: Reader, request: Reading, tokens: int, notes: list[str]) -> list[Document]:
    """Documents to deal; `tokens` is how many tokens a model that writes its own should write."""
    model, family = reader.model, reader.architecture.family
    if isinstance(source, str):
        require_there(source)
    if family.image:
        return read_images(
            _folder(source, model.config, tokens, request.seed), samples=request.samples, seed=request.seed
        )
    if family.towers:
        return read_captioned(
            _pairs(source, model.config, -(-tokens // reader.length), request.seed), samples=request.samples
        )
    if family.sound:
        return recordings_meant(source, model, reader.processor, tokens, samples=request.samples, seed=request.seed)
    if reader.processor is None:
        raise DataUnreadable(
            "there is no tokenizer with the model, so it cannot read text; put its tokenizer.json beside config.json "
            "(from Python: give a tokenizer as `processor`, or token ids as data)"
        )
    rows = reads_examples(model, family)
    read = partial(
        read_data, columns=request.columns, limit=request.samples, split=request.purpose, rows=rows, say=notes.append
    )
    sources: dict[str, Callable[[], list[Document]]] = {
        SELF: partial(own_documents, model, reader.processor, tokens=tokens, seed=request.seed)
    }
    if not reader.windows:
        sources[BUILTIN] = partial(broad_documents, "fit", rows=True)
    names = named_sources(source if isinstance(source, str | Path) else list(source)) or []
    if not any(name in sources for name in names):
        return read(source)
    parts = [sources[name]() if name in sources else read(name) for name in names]
    return spread(mix_documents(parts, weights_of(names)), request.samples)


def _folder(source: Any, config: Any, wanted: int, seed: int) -> str | Path:
    """The folder of images that is meant; drawn ones, so many positions of them, where there are none."""
    if source == SELF and not Path(SELF).is_dir():
        (height, width), (rows, columns) = sides(config.image_size), sides(config.patch_size)
        count = -(-wanted // ((height // rows) * (width // columns)))
        return own_images(count, channels=config.num_channels, sides=(height, width), seed=seed)
    if not isinstance(source, str | Path) or names_builtin(source):
        raise DataNotFound(f"a vision model is calibrated on images; give a folder of them with {option('data')}")
    if Path(source).is_file():
        raise DataUnreadable(f"{source} is a file; a vision model is calibrated on images: give a folder of them")
    return source


def _pairs(source: Any, config: Any, wanted: int, seed: int) -> Any:
    """The images with captions that are meant; drawn ones, so many, where there are none."""
    if isinstance(source, str) and source in (SELF, BUILTIN) and not Path(source).exists():
        return own_pairs(wanted, sides=sides(config.vision_config.image_size), seed=seed)
    return source


def _from_ids(ids: Tensor, reader: Reader, request: Reading) -> Data:
    """Token ids, sequences × length: the rows are dealt to the splits."""
    if reader.architecture.family.towers:
        raise DataUnreadable("two towers are calibrated on images with captions; give a table of both")
    if reader.architecture.family.sound:
        raise DataUnreadable("this model hears sounds; give a folder of wav or flac files instead of a tensor")
    if reader.architecture.family.image:
        raise DataUnreadable("a vision model is calibrated on images; give a folder of them instead of a tensor")
    if ids.is_meta or ids.layout is not torch.strided:
        raise DataUnreadable("token ids must be a dense tensor with values; this one is sparse, or holds none")
    if ids.ndim != 2 or len(ids) < len(SPLITS) or ids.shape[1] < 2:
        raise TooFewTokens(f"token ids must be sequences × length, at least {len(SPLITS)} × 2; got {tuple(ids.shape)}")
    length = min(reader.length, ids.shape[1])
    digest = hashlib.sha256(ids.cpu().contiguous().numpy().tobytes()).hexdigest()
    name, ids = describe_source(ids), _each_once(ids)
    rows = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(request.seed))][
        : request.samples, :length
    ]
    n = len(rows)
    shares = ((1, 0.55), (2, 0.75), (3, 0.9))
    cuts = [0, *(max(i, min(int(share * n), n - len(SPLITS) + i)) for i, share in shares), n]  # no split is empty
    limit = request.tokens
    most = {split: None if limit is None else max(1, int(share * limit) // length) for split, share in SHARE.items()}
    splits = {
        split: token_batches(rows[a:b][: most[split]], reader.batch_size)
        for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)
    }
    if reader.architecture.family.reads_pairs:
        splits = {split: [paired(batch, reader.model) for batch in part] for split, part in splits.items()}
    return Data(splits, name, digest, request.seed, length)


def _each_once(ids: Tensor) -> Tensor:
    """Every row once, in the order they came: the same row in two splits would be measured where it was fitted."""
    first = {row: i for i, row in reversed(list(enumerate(map(tuple, ids.tolist()))))}
    if len(first) < len(SPLITS):
        raise TooFewTokens(f"{len(ids):,} rows of token ids were given, {len(first):,} of them different; give more")
    return ids[sorted(first.values())]


def _require_all(splits: dict[str, list[Batch]], *, least: int) -> None:
    """Every split must have something to measure; one token predicts nothing."""
    counts = {split: sum(batch.tokens for batch in part) for split, part in splits.items()}
    empty = [split for split, tokens in counts.items() if tokens < least]
    if empty:
        raise TooFewTokens(
            f"the data leave nothing for {', '.join(empty)}; give more data, or raise the limits on tokens and samples"
        )


def _require_readable(splits: dict[str, list[Batch]], model: PreTrainedModel, architecture: Architecture) -> None:
    """Refuse what a tokenizer or image processor of another model makes, before it fails deep inside this one."""
    inputs = [batch.inputs for part in splits.values() for batch in part]
    if architecture.family.image or architecture.family.towers:
        config = getattr(model.config, "vision_config", model.config)
        expected = (config.num_channels, *sides(config.image_size))
        shapes = {tuple(given["pixel_values"].shape[1:]) for given in inputs}
        if shapes != {expected}:
            other = "×".join(map(str, next(iter(shapes - {expected}))))
            raise DataUnreadable(
                f"the image processor makes images of {other}, the model reads {'×'.join(map(str, expected))}; "
                "use the processor that belongs to the model"
            )
        return
    if architecture.family.sound:
        require_audible(inputs, model.config)
        return
    ids = [given["input_ids"] for given in inputs]
    least, most = min(int(part.min()) for part in ids), max(int(part.max()) for part in ids)
    if least < 0 or most >= vocabulary(model):
        raise DataUnreadable(
            f"the data hold tokens {least} to {most}, and the model knows 0 to {vocabulary(model) - 1}; "
            "use the tokenizer that belongs to the model"
        )

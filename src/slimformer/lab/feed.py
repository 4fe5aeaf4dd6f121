"""What training needs of the data: batches by index, sizes, and the facts a model has to know."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from slimformer.errors import BadExperiment, TooFewTokens
from slimformer.lab.data.augment import augmented
from slimformer.lab.data.images import read_images
from slimformer.lab.data.text import KINDS, Texts, read_texts, texts_folder
from slimformer.lab.masking import IGNORED, Masking
from slimformer.lab.settings import Augmentation, DataSettings, RunSettings, Task
from slimformer.lab.start import folder_of

Part = Literal["train", "validation"]
Batch = dict[str, Tensor]
HALF = 0.5  # pixels are scaled to [−1, 1]; nothing is fitted


@dataclass(frozen=True)
class Feed:
    """Examples by index.

    `load(part, index, draw)` makes a batch; with a generator it draws augmentations or masks from it, without one
    (None) it gives the example as it is, with the masks that were fixed for validation.
    `outputs` and `examples` are M and K of Q = K M / P.
    """

    sizes: dict[Part, int]
    load: Callable[[Part, Tensor, torch.Generator | None], Batch]
    facts: dict[str, Any]
    outputs: int
    examples: int
    processor: Any
    causal: bool
    digest: str


def open_feed(run: RunSettings, cache: Path) -> Feed:
    """The data of a run; the last few are kept in memory for the next run of this process.

    A model that is not trained from nothing reads texts through the tokenizer it has, not one trained here.
    """
    data = run.data
    if run.task != "image-classes" and data.tokenizer in KINDS:
        if run.before is not None:
            open_feed(run.before, cache)
            data = data.model_copy(update={"tokenizer": str(texts_folder(run.before.data, run.before.task, cache))})
        elif run.start is not None:
            data = data.model_copy(update={"tokenizer": str(folder_of(run.start))})
    return _opened(run.task, data, run.augmentation, cache)


@lru_cache(maxsize=3)
def _opened(task: Task, data: DataSettings, augmentation: Augmentation, cache: Path) -> Feed:
    return MAKERS[task](task, data, augmentation, cache)


def read_anew() -> None:
    """Forget what is in memory: files may have changed since."""
    _opened.cache_clear()


def generator(*key: object) -> torch.Generator:
    """Draws that depend on the key alone, so that no state has to be kept: seed, purpose, step."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def _image_feed(_task: Task, settings: DataSettings, augmentation: Augmentation, _cache: Path) -> Feed:
    data = read_images(settings)
    parts = {"train": data.train, "validation": data.validation}
    channels, height, width = data.train.pixels.shape[1:]

    def load(part: Part, index: Tensor, draw: torch.Generator | None) -> Batch:
        pixels = parts[part].pixels[index]
        pixels = pixels if draw is None else augmented(pixels, augmentation, draw)
        return {"pixel_values": (pixels.float() / 255 - HALF) / HALF, "labels": parts[part].labels[index]}

    if height != width:
        raise BadExperiment(f"images of {height} × {width} are not square; give image_size and source images")
    facts = {"image_size": height, "num_channels": channels, **_class_facts(data.classes)}
    sizes: dict[Part, int] = {"train": len(data.train), "validation": len(data.validation)}
    processor = _image_processor(height, channels)
    return Feed(sizes, load, facts, len(data.classes), sizes["train"], processor, False, data.digest())


def _image_processor(edge: int, channels: int) -> Any:
    from transformers import ViTImageProcessorPil  # the one that needs no further package

    level = [HALF] * channels
    return ViTImageProcessorPil(size={"height": edge, "width": edge}, image_mean=level, image_std=level)


def _class_feed(task: Task, settings: DataSettings, _augmentation: Augmentation, cache: Path) -> Feed:
    data = read_texts(settings, task, cache)
    parts = {"train": data.train, "validation": data.validation}
    pad = data.tokenizer.pad_token_id

    def load(part: Part, index: Tensor, _draw: torch.Generator | None) -> Batch:
        return {**padded(parts[part], index, pad), "labels": parts[part].labels[index]}

    facts = {**_text_facts(data.tokenizer, settings), **_class_facts(data.classes)}
    sizes: dict[Part, int] = {"train": len(data.train), "validation": len(data.validation)}
    return Feed(sizes, load, facts, len(data.classes), sizes["train"], data.tokenizer, False, data.digest())


def _language_feed(task: Task, settings: DataSettings, _augmentation: Augmentation, cache: Path) -> Feed:
    data = read_texts(settings, task, cache)
    end = data.tokenizer.sep_token_id if task == "masked-lm" else data.tokenizer.eos_token_id
    rows = {"train": packed(data.train, settings.max_length, end)}
    rows["validation"] = packed(data.validation, settings.max_length, end)
    for part, ids in rows.items():
        if not len(ids):
            raise TooFewTokens(
                f"the {part} part has not {settings.max_length} tokens; give more text or a shorter max_length"
            )
    facts = _text_facts(data.tokenizer, settings)
    sizes: dict[Part, int] = {"train": len(rows["train"]), "validation": len(rows["validation"])}
    load = _causal(rows) if task == "causal-lm" else _masked(rows, settings, data.tokenizer)
    examples = rows["train"].numel()
    return Feed(sizes, load, facts, facts["vocab_size"], examples, data.tokenizer, task == "causal-lm", data.digest())


def _causal(rows: dict[str, Tensor]) -> Callable[[Part, Tensor, torch.Generator | None], Batch]:
    def load(part: Part, index: Tensor, _draw: torch.Generator | None) -> Batch:
        ids = rows[part][index].long()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    return load


def _masked(
    rows: dict[str, Tensor], settings: DataSettings, tokenizer: Any
) -> Callable[[Part, Tensor, torch.Generator | None], Batch]:
    masking = Masking.of(tokenizer, settings.mask)
    # validation asks the same questions at every evaluation of every run
    fixed = {
        part: masking(sequences, generator("masks", part)) for part, sequences in rows.items() if part == "validation"
    }

    def load(part: Part, index: Tensor, draw: torch.Generator | None) -> Batch:
        if part in fixed:
            ids, labels = (tensor[index].long() for tensor in fixed[part])
        else:
            ids, labels = masking(rows[part][index].long(), draw or generator("masks", part, int(index[0])))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return load


def padded(texts: Texts, index: Tensor, pad: int) -> Batch:
    """Documents side by side, as wide as the longest of them."""
    start, end = texts.offsets[index], texts.offsets[index + 1]
    lengths = end - start
    place = torch.arange(int(lengths.max()))[None]
    real = place < lengths[:, None]
    taken = texts.ids[(start[:, None] + place).clamp(max=len(texts.ids) - 1)].long()
    return {"input_ids": torch.where(real, taken, pad), "attention_mask": real.long()}


def packed(texts: Texts, length: int, end: int | None) -> Tensor:
    """Documents end to end, a mark after each, cut into rows of `length`; what is left over is dropped."""
    if end is None:
        stream = texts.ids
    else:
        counts = texts.offsets.diff()
        stream = torch.full((len(texts.ids) + len(counts),), end, dtype=torch.int32)
        document = torch.repeat_interleave(torch.arange(len(counts)), counts)
        stream[torch.arange(len(texts.ids)) + document] = texts.ids
    n = len(stream) // length
    return stream[: n * length].view(n, length)


def _text_facts(tokenizer: Any, settings: DataSettings) -> dict[str, Any]:
    marks = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    known = {name: value for name, value in marks.items() if value is not None}
    return {"vocab_size": len(tokenizer), "max_position_embeddings": settings.max_length, **known}


def _class_facts(classes: tuple[str, ...]) -> dict[str, Any]:
    names = dict(enumerate(classes))
    return {"id2label": names, "label2id": {name: i for i, name in names.items()}}


MAKERS: dict[Task, Callable[[Task, DataSettings, Augmentation, Path], Feed]] = {
    "image-classes": _image_feed, "text-classes": _class_feed, "masked-lm": _language_feed, "causal-lm": _language_feed,
}  # fmt: skip
__all__ = ["IGNORED", "Batch", "Feed", "Part", "generator", "open_feed", "packed", "padded", "read_anew"]

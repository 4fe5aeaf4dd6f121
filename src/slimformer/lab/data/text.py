"""Texts as token ids in memory: read once, the tokenizer trained on the training part alone, both stored with the runs.

Files of texts are read as everywhere in the package (plain text, tsv, csv, json, jsonl, parquet); data sets by name
through `datasets`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from slimformer.calibrate.documents import Document, read_documents
from slimformer.checkpoint.atomic import writing
from slimformer.errors import BadExperiment, DataNotFound, OutputExists, TooFewExamples
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import read_bytes
from slimformer.lab.data import hub
from slimformer.lab.data.held_out import held_out, subset
from slimformer.lab.data.tokenizer import open_tokenizer, train_tokenizer
from slimformer.lab.settings import DataSettings, Task

KINDS = ("wordpiece", "bpe")
PARTS = ("train", "validation")
TOKENS = "tokens.safetensors"


@dataclass(frozen=True)
class Texts:
    """Documents laid end to end: document i is ids[offsets[i] : offsets[i + 1]]."""

    ids: Tensor
    offsets: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TextData:
    """Token ids of both parts, the tokenizer, and what the classes are called."""

    train: Texts
    validation: Texts
    tokenizer: Any
    classes: tuple[str, ...]

    def digest(self) -> str:
        """Of the ids themselves."""
        total = hashlib.blake2b(digest_size=8)
        for part in (self.train, self.validation):
            for tensor in (part.ids, part.offsets, part.labels):
                total.update(tensor.numpy().tobytes())
        return total.hexdigest()


def read_texts(settings: DataSettings, task: Task, cache: Path) -> TextData:
    """The texts the settings name, as ids. What has been read once lies in `cache` and is taken from there."""
    folder = texts_folder(settings, task, cache)
    if not folder.is_dir():
        _encode(settings, task, folder)
    require_unchanged(folder, TOKENS)
    with safe_open(folder / TOKENS, framework="pt") as file:
        classes = tuple(json.loads(file.metadata()["classes"]))
        train, validation = (
            Texts(*(file.get_tensor(f"{part}.{name}") for name in ("ids", "offsets", "labels"))) for part in PARTS
        )
    tokenizer = open_tokenizer(str(folder))
    # the ids are shared by runs of all lengths, the model has positions for this many
    tokenizer.model_max_length = min(tokenizer.model_max_length, settings.max_length)
    return TextData(train, validation, tokenizer, classes)


def texts_folder(settings: DataSettings, task: Task, cache: Path) -> Path:
    """Where these texts lie as ids, with their tokenizer."""
    return cache / _key(settings, task)


def _key(settings: DataSettings, task: Task) -> str:
    """Other settings, or other files at the same place, are other texts."""
    used = settings.model_dump(exclude={"channels", "image_size", "mask", *(() if _classes(task) else ("max_length",))})
    stamps = [
        [status.st_size, status.st_mtime_ns]
        for path in (settings.path, settings.validation_path)
        if path and settings.source != "hub" and os.path.exists(path)
        for status in [os.stat(path)]
    ]
    if Path(settings.tokenizer).is_dir():  # the same tokenizer in two folders makes the same ids
        used["tokenizer"] = _tokenizer_digest(Path(settings.tokenizer))
    written = json.dumps([used, stamps, _classes(task), task == "causal-lm"], sort_keys=True, default=str)
    return hashlib.blake2b(written.encode(), digest_size=8).hexdigest()


def _tokenizer_digest(folder: Path) -> str:
    whole = [folder / "tokenizer.json"] if (folder / "tokenizer.json").is_file() else sorted(folder.glob("*.json"))
    return hashlib.blake2b(b"\0".join(read_bytes(file) for file in whole), digest_size=8).hexdigest()


def _encode(settings: DataSettings, task: Task, folder: Path) -> None:
    parts = split_texts(settings)
    classes = _class_names(parts[0]) if _classes(task) else ()
    trained = settings.tokenizer in KINDS
    try:
        with writing(folder, "texts", force=False) as place:
            if trained:
                texts = (text for document in parts[0] for text in (document.text, document.pair) if text)
                tokenizer = train_tokenizer(texts, settings.tokenizer, settings.vocabulary, causal=task == "causal-lm")
            else:
                tokenizer = open_tokenizer(settings.tokenizer)
            tokenizer.save_pretrained(place)
            tensors: dict[str, Tensor] = {}
            for name, documents in zip(PARTS, parts, strict=True):
                encoded = _ids(documents, tokenizer, settings.max_length if _classes(task) else None)
                tensors |= {f"{name}.{key}": value for key, value in encoded.items()}
                tensors[f"{name}.labels"] = _numbers(documents, classes)
            save_file(tensors, place / TOKENS, metadata={"classes": json.dumps(classes)})
    except OutputExists:  # another process was faster, and did the same
        pass


def split_texts(settings: DataSettings) -> tuple[list[Document], list[Document]]:
    """Documents to train on and to validate on; a document and its copies are on one side."""
    if settings.source == "hub":
        train, validation = hub.read_texts(settings)
    elif settings.source in {"text", "builtin"}:
        train = _read("builtin" if settings.source == "builtin" else settings.path, settings)
        validation = _read(settings.validation_path, settings) if settings.validation_path else None
    else:
        raise BadExperiment(f"data source {settings.source!r} has no texts; choose from text, builtin, hub")
    if validation is None:
        contents = [f"{document.text}\0{document.pair or ''}".encode(errors="replace") for document in train]
        training, behind = held_out(contents, settings.validation_share)
        train, validation = [train[i] for i in training.tolist()], [train[i] for i in behind.tolist()]
    parts = ((train, settings.train_examples), (validation, settings.validation_examples))
    first, second = ([part[i] for i in subset(len(part), most).tolist()] for part, most in parts)
    return first, second


def _read(path: str | None, settings: DataSettings) -> list[Document]:
    if path is None:
        raise BadExperiment("data source 'text' needs a path: a .txt, .tsv, .csv, .json, .jsonl or .parquet file")
    if path != "builtin" and not os.path.exists(path):
        raise DataNotFound(f"there is no file {path}; name a file of texts")
    return read_documents(Path(path) if path != "builtin" else path, columns=settings.columns or None,
                          label=settings.label)  # fmt: skip


def _ids(documents: Sequence[Document], tokenizer: Any, longest: int | None) -> dict[str, Tensor]:
    """Ids end to end. For classes with the marks around them and cut at `longest`; for language, without marks."""
    rows: list[Tensor] = []
    for start in range(0, len(documents), 1024):
        part = documents[start : start + 1024]
        how: dict[str, Any] = {"add_special_tokens": longest is not None}
        if longest is not None:
            how |= {"truncation": True, "max_length": longest}
        second = [document.pair or "" for document in part] if part[0].pair is not None else None
        encoded = tokenizer([document.text for document in part], second, return_attention_mask=False, **how)
        rows += [torch.tensor(row, dtype=torch.int32) for row in encoded["input_ids"]]
    lengths = torch.tensor([0, *map(len, rows)])
    return {"ids": torch.cat(rows), "offsets": lengths.cumsum(0)}


def _classes(task: Task) -> bool:
    return task == "text-classes"


def _class_names(documents: Sequence[Document]) -> tuple[str, ...]:
    labels = {document.label for document in documents}
    if None in labels:
        raise BadExperiment("some texts have no label; name the column with label: …")
    if len(labels) < 2:
        raise TooFewExamples(f"all {len(documents)} texts to train on are of one class; there is nothing to learn")
    return tuple(map(str, sorted(labels, key=lambda label: (isinstance(label, str), label))))


def _numbers(documents: Sequence[Document], classes: Sequence[str]) -> Tensor:
    if not classes:
        return torch.full((len(documents),), -1)
    numbers = {name: i for i, name in enumerate(classes)}
    unknown = {str(document.label) for document in documents} - set(numbers)
    if unknown:
        raise BadExperiment(f"class {sorted(unknown)[0]!r} is in the validation part and not in the training part")
    return torch.tensor([numbers[str(document.label)] for document in documents])

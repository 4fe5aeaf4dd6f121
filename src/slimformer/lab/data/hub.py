"""Data sets by name, through `datasets`: from the hub when the network allows, or from a local folder it can read."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimformer.calibrate.documents import Document
from slimformer.errors import BadExperiment, ColumnNotFound, DataNotFound, DataUnreadable
from slimformer.lab.settings import DataSettings
from slimformer.models.hub import hub_or_cache

BEHIND = ("validation", "test")
Arrays = tuple[Tensor, Tensor]


def read_images(settings: DataSettings) -> tuple[Arrays, Arrays | None, tuple[str, ...]]:
    """Pixels and labels of both parts; images must be of one size, or `image_size` says which."""
    parts = _parts(settings)
    first = parts[0]
    image = settings.columns[0] if settings.columns else _column(first, ("image", "img"))
    label = settings.label or _column(first, ("label", "fine_label", "labels"))
    names = getattr(first.features[label], "names", None) or sorted({str(value) for value in first[label]})
    numbers = {name: i for i, name in enumerate(names)}
    arrays = [_arrays(part, image, label, numbers, settings) for part in parts]
    return arrays[0], arrays[1] if len(arrays) > 1 else None, tuple(names)


def read_texts(settings: DataSettings) -> tuple[list[Document], list[Document] | None]:
    """Texts, or pairs, with their labels if there are any."""
    parts = _parts(settings)
    columns = settings.columns or (_column(parts[0], ("text", "sentence", "content")),)
    label = settings.label or next((name for name in ("label", "labels") if name in parts[0].column_names), None)
    texts = [[_document(row, columns, label) for row in part] for part in parts]
    return texts[0], texts[1] if len(texts) > 1 else None


def _parts(settings: DataSettings) -> list[Any]:
    """The training part, and one to validate on if there is one."""
    if settings.path is None:
        raise BadExperiment("data source 'hub' needs a path: the name of a data set, owner/name or owner/name:config")
    name, _, config = settings.path.partition(":")
    try:
        datasets = importlib.import_module("datasets")
        with hub_or_cache():
            dataset = datasets.load_dataset(name, config or None)
    except Exception as error:  # `datasets` raises a dozen unrelated types for one fact
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise DataNotFound(f"the data set {settings.path!r} cannot be opened: {reason}") from None
    if "train" not in dataset:
        raise DataNotFound(f"the data set {settings.path!r} has no part 'train'; it has {', '.join(dataset)}")
    behind = settings.validation_path or next((part for part in BEHIND if part in dataset), None)
    if behind is not None and behind not in dataset:
        raise DataNotFound(f"the data set {settings.path!r} has no part {behind!r}; it has {', '.join(dataset)}")
    return [dataset["train"], *([dataset[behind]] if behind else [])]


def _arrays(part: Any, image: str, label: str, numbers: dict[str, int], settings: DataSettings) -> Arrays:
    pictures = []
    for row in part:
        picture = row[image].convert("L" if settings.channels == 1 or row[image].mode in {"L", "1"} else "RGB")
        if settings.image_size:
            picture = picture.resize((settings.image_size, settings.image_size))
        array = np.asarray(picture)
        pictures.append(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    if len({array.shape for array in pictures}) > 1:
        raise DataUnreadable(f"images of {settings.path!r} differ in size; give image_size")
    labels = [value if isinstance(value, int) and not isinstance(value, bool) else None for value in part[label]]
    known = [numbers[str(v)] if n is None else n for n, v in zip(labels, part[label], strict=True)]
    return torch.from_numpy(np.stack(pictures)), torch.tensor(known)


def _document(row: dict[str, Any], columns: tuple[str, ...], label: str | None) -> Document:
    text, *pair = (str(row[name]) for name in columns)
    return Document(text, pair[0] if pair else None, row[label] if label else None)


def _column(part: Any, names: tuple[str, ...]) -> str:
    for name in names:
        if name in part.column_names:
            return name
    raise ColumnNotFound(f"none of {', '.join(names)} is a column; there are {', '.join(part.column_names)}")

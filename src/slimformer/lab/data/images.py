"""Images as uint8 tensors in memory: digits, idx files, CIFAR-10 in three forms, folders, data sets by name."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimformer.errors import BadExperiment, DataEmpty, DataNotFound, DataUnreadable
from slimformer.lab.data import cifar, hub, idx
from slimformer.lab.data.held_out import held_out, subset
from slimformer.lab.settings import DataSettings


@dataclass(frozen=True)
class Images:
    """n images of c × h × w bytes, and the number of the class of each."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Images:
        """Some of them."""
        return Images(self.pixels[index], self.labels[index])


@dataclass(frozen=True)
class ImageData:
    """A part to train on, a part to validate on, and what the classes are called."""

    train: Images
    validation: Images
    classes: tuple[str, ...]

    def digest(self) -> str:
        """Of the bytes themselves."""
        total = hashlib.blake2b(digest_size=8)
        for part in (self.train, self.validation):
            total.update(str(tuple(part.pixels.shape)).encode())
            total.update(part.pixels.numpy().tobytes())
            total.update(part.labels.numpy().tobytes())
        return total.hexdigest()


Read = tuple[Images, Images | None, tuple[str, ...]]


def read_images(settings: DataSettings) -> ImageData:
    """The data set the settings name, cut to the numbers of examples they ask for."""
    if settings.source not in SOURCES:
        raise BadExperiment(f"data source {settings.source!r} has no images; choose from {', '.join(SOURCES)}")
    train, validation, classes = SOURCES[settings.source](settings)
    if validation is None:
        contents = [row.tobytes() for row in train.pixels.numpy()]
        training, behind = held_out(contents, settings.validation_share)
        train, validation = train.take(training), train.take(behind)
    parts = [
        _channels(part.take(subset(len(part), most)), settings.channels)
        for part, most in ((train, settings.train_examples), (validation, settings.validation_examples))
    ]
    return ImageData(parts[0], parts[1], classes)


def _digits(_: DataSettings) -> Read:
    """1,797 digits of 8 × 8 pixels that come with scikit-learn."""
    try:
        bundle = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise DataNotFound("the digits come with scikit-learn; run: pip install 'slimformer[eval]'") from None
    pixels = torch.from_numpy((bundle.images * (255 / 16)).round().astype(np.uint8))[:, None]
    return Images(pixels, torch.from_numpy(bundle.target).long()), None, tuple(map(str, range(10)))


def _idx(settings: DataSettings) -> Read:
    folder = _folder(settings)
    train = Images(*idx.read_pair(folder, "train"))
    return train, Images(*idx.read_pair(folder, "t10k")), _numbered(train.labels)


def _cifar10(settings: DataSettings) -> Read:
    folder = _folder(settings)
    parts = {part: Images(*cifar.read_part(folder, part)) for part in ("train", "test")}
    return parts["train"], parts["test"], cifar.CLASSES


def _image_folder(settings: DataSettings) -> Read:
    """A sub-folder for each class; below train/ and val/ if these are there."""
    root = _folder(settings)
    behind = Path(settings.validation_path) if settings.validation_path else root / "val"
    front = root / "train" if (root / "train").is_dir() else root
    separate = behind.is_dir()
    classes = sorted(path.name for path in front.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise DataEmpty(f"{front} has {len(classes)} sub-folders; an image folder has one for each class")
    train = _decoded(front, classes, settings)
    return train, _decoded(behind, classes, settings) if separate else None, tuple(classes)


def _decoded(root: Path, classes: Sequence[str], settings: DataSettings) -> Images:
    from slimformer.calibrate.images import image_batches, read_images

    documents = read_images(root)
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [numbers.get(Path(document.text).relative_to(root.resolve()).parts[0]) for document in documents]
    if None in labels:
        stranger = Path(documents[labels.index(None)].text)
        raise DataUnreadable(f"{stranger} is in none of the classes {', '.join(classes[:5])} of the training part")
    how: dict[str, Any] = {"image_size": settings.image_size or 32, "channels": settings.channels or 3}
    batches = image_batches(documents, None, batch_size=256, **how)
    floats = torch.cat([((batch.inputs["pixel_values"] + 1) * 127.5).round().to(torch.uint8) for batch in batches])
    return Images(floats.contiguous(), torch.tensor(labels))


def _hub(settings: DataSettings) -> Read:
    train, validation, classes = hub.read_images(settings)
    return Images(*train), None if validation is None else Images(*validation), classes


def _channels(images: Images, channels: int | None) -> Images:
    """Grey repeated thrice, or colours mixed as television did (ITU-R BT.601)."""
    have = images.pixels.shape[1]
    if channels is None or channels == have:
        return images
    if channels == 3:
        return Images(images.pixels.expand(-1, 3, -1, -1).contiguous(), images.labels)
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    parts = [(part * weights).sum(1, keepdim=True).round().to(torch.uint8) for part in images.pixels.split(1024)]
    return Images(torch.cat(parts), images.labels)


def _folder(settings: DataSettings) -> Path:
    if settings.path is None:
        raise BadExperiment(f"data source {settings.source!r} needs a path: the folder its files are in")
    if not Path(settings.path).is_dir():
        raise DataNotFound(f"there is no folder {settings.path}; put the files of {settings.source} there")
    return Path(settings.path)


def _numbered(labels: Tensor) -> tuple[str, ...]:
    return tuple(str(number) for number in range(int(labels.max()) + 1))


SOURCES: dict[str, Callable[[DataSettings], Read]] = {
    "digits": _digits, "mnist": _idx, "fashion-mnist": _idx, "idx": _idx, "cifar10": _cifar10,
    "images": _image_folder, "hub": _hub,
}  # fmt: skip

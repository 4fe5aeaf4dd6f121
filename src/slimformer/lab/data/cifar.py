"""CIFAR-10 without pickles: the binary version, and the form of six PNG files with labels as JSON.

Binary: rows of 1 + 3072 bytes, the class, then the red, green and blue planes. PNG: an image is a row of 1,024 pixels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slimformer.errors import DataNotFound, DataUnreadable
from slimformer.files.reading import LARGE, read_bytes, read_json

EDGE = 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def read_part(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images (n × 3 × 32 × 32, uint8) and labels of `train` or `test`, in whichever form the folder has them."""
    inner = folder / "cifar-10-batches-bin"
    folder = inner if inner.is_dir() else folder
    names = BATCHES[part]
    for suffix, read in ((".bin", _binary), (".png", _pictures)):
        files = [folder / f"{name}{suffix}" for name in names]
        missing = [file.name for file in files if not file.is_file()]
        if missing and len(missing) < len(files):
            raise DataNotFound(f"{folder} has no {', '.join(missing)}; for less data give train_examples")
        if not missing:
            images, labels = read(files, folder, part)
            return images.contiguous(), _within(labels, folder)
    raise DataNotFound(f"{folder} has neither {names[0]}.bin nor {names[0]}.png; the pickled form is not read")


def _binary(files: list[Path], _folder: Path, _part: str) -> tuple[Tensor, Tensor]:
    width = 1 + 3 * EDGE**2
    rows = []
    for file in files:
        data = torch.frombuffer(bytearray(read_bytes(file, LARGE) or b"\0"), dtype=torch.uint8)
        if len(data) % width:
            raise DataUnreadable(f"{file} has {len(data):,} bytes, which are no rows of {width:,}")
        rows.append(data.view(-1, width))
    every = torch.cat(rows)
    return every[:, 1:].reshape(-1, 3, EDGE, EDGE), every[:, 0].long()


def _pictures(files: list[Path], folder: Path, part: str) -> tuple[Tensor, Tensor]:
    try:
        from PIL import Image
    except ImportError:
        raise DataUnreadable("reading images needs pillow: pip install 'slimformer[vision]'") from None
    pixels = []
    for file in files:
        try:
            with Image.open(file) as image:
                rows = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:  # what pillow raises for files cut short
            raise DataUnreadable(f"{file} is no image: {error}") from None
        if rows.shape[1] != EDGE**2:
            raise DataUnreadable(f"{file} is {rows.shape[1]} pixels wide; expected {EDGE**2}, an image in each row")
        pixels.append(torch.from_numpy(rows.copy()).view(-1, EDGE, EDGE, 3).movedim(-1, 1))
    images, labels = torch.cat(pixels), _labels(folder, part)
    if labels.shape != (len(images),):
        raise DataUnreadable(f"{folder} has {len(images):,} {part} images and {len(labels):,} labels")
    return images, labels


def _labels(folder: Path, part: str) -> Tensor:
    for name in (f"{part}_lables.json", f"{part}_labels.json"):  # the published files are spelt the first way
        if (folder / name).is_file():
            try:
                return torch.tensor(read_json(folder / name), dtype=torch.long)
            except (ValueError, TypeError) as error:
                raise DataUnreadable(f"{folder / name} is no list of numbers: {error}") from None
    raise DataNotFound(f"{folder} has the images and no {part}_labels.json")


def _within(labels: Tensor, folder: Path) -> Tensor:
    if not len(labels) or int(labels.min()) < 0 or int(labels.max()) >= len(CLASSES):
        raise DataUnreadable(f"labels in {folder} are not numbers from 0 to {len(CLASSES) - 1}")
    return labels

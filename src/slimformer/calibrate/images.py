"""A folder of images to batches of pixels.

An image becomes a document whose text is its path and whose group is the digest of its bytes, so
`split_documents` serves images as well, and a picture stored under two names cannot be in two splits.
"""

from __future__ import annotations

import hashlib
import importlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimformer.calibrate.documents import Document, Label, parse_labels
from slimformer.calibrate.text import Batch, label_tensor
from slimformer.errors import DataEmpty, DataNotFound, DataUnreadable
from slimformer.files.reading import LARGE, read_bytes

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


def read_images(folder: str | Path, *, samples: int | None = None, seed: int = 0) -> list[Document]:
    """The images below a folder, at most `samples` of them, chosen by `seed`.

    Sub-folders, if there are several, name the classes; names that are numbers become numbers.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataNotFound(f"there is no folder {root}; give a folder of images, with a sub-folder for each class")
    paths = sorted(path for path in root.rglob("*") if _is_image(path))
    if not paths:
        raise DataEmpty(f"there are no images below {root}; looked for {', '.join(SUFFIXES)}")
    labels = _classes(root, paths)
    found = list(zip(paths, labels, strict=True))
    if samples is not None and samples < len(found):
        found = random.Random(seed).sample(found, samples)
    # the whole path: whichever way a folder is named, its images are dealt to the splits alike
    return [Document(str(path.resolve()), label=label, group=_digest(path)) for path, label in found]


def image_batches(
    documents: Sequence[Document],
    processor: Any,
    *,
    batch_size: int = 8,
    image_size: int = 224,
    channels: int = 3,
    label_ids: Mapping[str, int] | None = None,
) -> list[Batch]:
    """Pixels as the image processor of the model makes them.

    Without a processor (None): resized to `image_size`, scaled to [0, 1], shifted by ½ and divided by ½.
    """
    batches = []
    for start in range(0, len(documents), batch_size):
        part = documents[start : start + batch_size]
        images = [_open(Path(document.text), channels) for document in part]
        inputs = _plain(images, image_size) if processor is None else _processed(processor, images)
        batches.append(Batch(inputs, None, label_tensor([document.label for document in part], label_ids)))
    return batches


def _is_image(path: Path) -> bool:
    # "._x.png" is what macOS leaves beside x.png
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _classes(root: Path, paths: Sequence[Path]) -> list[Label]:
    inside = [path.relative_to(root).parts for path in paths]
    names = [parts[0] if len(parts) > 1 else None for parts in inside]
    if len(set(names) - {None}) < 2:
        return [None] * len(paths)
    return parse_labels(names)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_bytes(path, LARGE)).hexdigest()
    except OSError as error:
        raise DataUnreadable(f"image {path} cannot be opened: {error.strerror}") from error


def _open(path: Path, channels: int) -> Any:
    pil = pillow()
    try:
        with pil.Image.open(path) as image:
            upright = pil.ImageOps.exif_transpose(image)
            return upright.convert("L" if channels == 1 else "RGB")
    except FileNotFoundError as error:
        raise DataNotFound(f"image {path} is no longer there; read the folder again") from error
    except (OSError, SyntaxError, ValueError, pil.Image.DecompressionBombError) as error:
        raise DataUnreadable(f"image {path} is corrupt or no image; repair or remove it") from error


def pillow() -> Any:
    """The library that reads and writes images."""
    try:
        importlib.import_module("PIL.ImageOps")
    except ImportError as error:
        raise DataUnreadable("reading images needs pillow: pip install 'slimformer[vision]'") from error
    return importlib.import_module("PIL")


def _plain(images: Sequence[Any], image_size: int) -> dict[str, Tensor]:
    bilinear = pillow().Image.Resampling.BILINEAR
    arrays = [np.asarray(image.resize((image_size, image_size), bilinear), np.float32) for image in images]
    pixels = torch.from_numpy(np.stack(arrays))
    if pixels.ndim == 3:  # grey images have no axis for the channel
        pixels = pixels[..., None]
    return {"pixel_values": (pixels.movedim(-1, 1) / 255 - 0.5) / 0.5}


def _processed(processor: Any, images: Sequence[Any]) -> dict[str, Tensor]:
    made = processor(images=list(images), return_tensors="pt")
    return {name: value for name, value in made.items() if isinstance(value, Tensor)}

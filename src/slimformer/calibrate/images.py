"""A folder of images to batches of pixels."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimformer.calibrate.document import Document
from slimformer.calibrate.folder import documents_below
from slimformer.calibrate.text import Batch, label_tensor
from slimformer.errors import DataNotFound, DataUnreadable

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


def read_images(folder: str | Path, *, samples: int | None = None, seed: int = 0) -> list[Document]:
    """The images below a folder, at most `samples` of them, chosen by `seed`; sub-folders name the classes."""
    return documents_below(folder, "image", SUFFIXES, samples=samples, seed=seed)


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


def processed_images(paths: Sequence[str], processor: Any) -> dict[str, Tensor]:
    """Pixels of coloured images as a processor makes them."""
    return _processed(processor, [_open(Path(path), 3) for path in paths])


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
    processed = processor(images=list(images), return_tensors="pt")
    return {name: value for name, value in processed.items() if isinstance(value, Tensor)}

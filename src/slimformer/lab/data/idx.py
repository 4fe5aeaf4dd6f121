"""The idx files of MNIST and Fashion-MNIST, gzipped or not.

Two zero bytes, a byte for the type (8: unsigned bytes), a byte for the number of axes, the axes as big-endian 32-bit
numbers, then the values.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from slimformer.errors import DataNotFound, DataUnreadable
from slimformer.files.reading import LARGE, read_bytes

BYTES = 8


def read_pair(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images (n × 1 × h × w, uint8) and labels of a part, `train` or `t10k`."""
    images, labels = read_idx(_file(folder, f"{part}-images")), read_idx(_file(folder, f"{part}-labels"))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not len(labels):
        shapes = f"{tuple(images.shape)} and {tuple(labels.shape)}"
        raise DataUnreadable(f"{part} images and labels in {folder} do not fit each other: {shapes}")
    return images[:, None], labels.long()


def read_idx(path: Path) -> Tensor:
    """The array in an idx file of unsigned bytes."""
    try:
        data = read_bytes(path, LARGE)
        data = _unzipped(data, path) if data[:2] == b"\x1f\x8b" else data
        zeros, kind, axes = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{axes}I", data, 4)
    except (EOFError, OSError, struct.error, zlib.error) as error:
        raise DataUnreadable(f"{path} is cut short or no idx file: {error}") from None
    body = torch.frombuffer(bytearray(data[4 + 4 * axes :] or b"\0"), dtype=torch.uint8)
    if zeros or kind != BYTES or torch.Size(shape).numel() != len(body):
        raise DataUnreadable(f"{path} is no idx file of bytes: its head promises {shape}, it holds {len(body)} bytes")
    return body.view(shape)


def _unzipped(data: bytes, path: Path) -> bytes:
    """A few bytes may stand for any number of zeros."""
    with gzip.open(io.BytesIO(data)) as file:
        content = file.read(LARGE + 1)
    if len(content) > LARGE:
        raise DataUnreadable(f"{path} unpacks to more than {LARGE >> 30} GiB, which is no data set of images")
    return content


def _file(folder: Path, start: str) -> Path:
    """Some copies write `idx3-ubyte`, some `.idx3-ubyte`; gzipped or not."""
    files = sorted(folder.glob(f"{start}*idx?-ubyte*"))
    if not files:
        raise DataNotFound(f"{folder} has no file {start}-idx?-ubyte or {start}-idx?-ubyte.gz")
    return files[0]

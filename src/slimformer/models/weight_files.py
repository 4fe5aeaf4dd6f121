"""The safetensors files of a checkpoint: which there are, and what their headers say. No weight is read to know it.

Weights in pickles are refused: a pickle may run code when it is opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from slimformer.errors import ModelBroken, ModelNotFound
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import LARGE, read_json

KINDS = {  # kinds of numbers as safetensors call them, in the order of its files turned round
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
BYTES = {kind: dtype.itemsize for dtype, kind in KINDS.items()}
FRACTIONS = {kind for dtype, kind in KINDS.items() if dtype.is_floating_point}
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLES = "pytorch_model*.bin"


@dataclass(frozen=True)
class Weights:
    """The tensors of a checkpoint by the names the module has for them: file, name there, shape and kind of numbers."""

    folder: Path
    files: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, str]  # as safetensors call them
    stored: Mapping[str, str] = field(default_factory=dict)  # names in the files, where they are others

    def size(self, names: Iterable[str], dtype: torch.dtype | None = None) -> int:
        """Bytes of some tensors, in a precision or as they are stored."""
        item = None if dtype is None else dtype.itemsize
        return sum(math.prod(self.shapes[name]) * (item or BYTES.get(self.kinds[name], 8)) for name in names)

    def copied(self, names: Iterable[str], dtype: torch.dtype) -> int:
        """Bytes of memory these take in a precision: none where they are stored in it, or hold no fractions."""
        mapped = BYTES.keys() - FRACTIONS | {KINDS.get(dtype)}
        return self.size([name for name in names if self.kinds[name] not in mapped], dtype)

    def read(self, names: Iterable[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Tensors by name, floating ones in a precision; mapped from the file where that is the stored one."""
        for name, tensor in self.map(names):
            yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor

    def map(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Tensors by name as they are stored: none of them takes memory."""
        by_file: dict[str, list[str]] = {}
        for name in names:
            by_file.setdefault(self.files[name], []).append(name)
        for file, some in by_file.items():
            with _readable(self.folder / file) as tensors:
                for name in some:
                    yield name, tensors.get_tensor(self.stored.get(name, name))

    def require_unchanged(self) -> None:
        """Refuse files of a result that are not what was written. Cost: reading them, where they have a list."""
        require_unchanged(self.folder, INDEX, *sorted(set(self.files.values())))

    def known_as(self, names: Mapping[str, str]) -> Weights:
        """Those of `names` only (from the name in the file to that of the module)."""
        back = {module: name for name, module in names.items()}
        files = {module: self.files[name] for module, name in back.items()}
        shapes = {module: self.shapes[name] for module, name in back.items()}
        kinds = {module: self.kinds[name] for module, name in back.items()}
        return Weights(self.folder, files, shapes, kinds, back)


def open_weights(folder: Path) -> Weights:
    """The files of a checkpoint, the one transformers would take or those its index names. Only headers are read."""
    if (folder / SINGLE).is_file():
        listed: dict[str, str] = {}
        names = [SINGLE]
    elif (folder / INDEX).is_file():
        listed = _indexed(folder)
        names = list(dict.fromkeys(listed.values()))
    else:
        raise _no_weights(folder)
    files: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    kinds: dict[str, str] = {}
    for file in names:
        with _readable(folder / file) as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if name in files:
                    raise ModelBroken(f"{folder}: {name} is in {files[name]} and in {file}; use an intact checkpoint")
                part = tensors.get_slice(name)
                files[name], shapes[name], kinds[name] = file, tuple(part.get_shape()), part.get_dtype()
    for name, file in listed.items():
        if files.get(name) != file:
            raise ModelBroken(f"{folder / file} does not hold {name}, which {INDEX} promises")
    return Weights(folder, files, shapes, kinds)


def _no_weights(folder: Path) -> ModelNotFound:
    pickles = sorted(path.name for path in folder.glob(PICKLES))
    if not pickles:
        return ModelNotFound(f"{str(folder)!r} holds no weights: neither {SINGLE} nor {INDEX}")
    convert = (
        "import glob, torch; from safetensors.torch import save_file; "
        f"save_file({{k: v.clone().contiguous() for f in glob.glob('{folder / PICKLES}') "
        f"for k, v in torch.load(f, weights_only=True).items()}}, '{folder / SINGLE}', {{'format': 'pt'}})"
    )
    return ModelNotFound(
        f"{str(folder)!r} holds its weights as a pickle ({pickles[0]}), and only safetensors "
        "are read; convert it once: "
        f'python -c "{convert}"'
    )


def _indexed(folder: Path) -> dict[str, str]:
    """The index, if it names files of this folder and nothing else."""
    try:
        index = read_json(folder / INDEX, LARGE)["weight_map"]
        files = {str(name): file for name, file in index.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelBroken(f"{folder / INDEX} cannot be read; use an intact checkpoint") from error
    for name, file in files.items():
        inside = isinstance(file, str) and file.endswith(".safetensors") and not set(file) & set("/\\\0")
        if not inside:
            raise ModelBroken(f"{folder / INDEX}: {name} is said to be in {file!r}, which is no file of this folder")
        if not (folder / file).is_file():
            raise ModelBroken(f"{folder / INDEX} names {file}, which is missing; use an intact checkpoint")
    return files


@contextmanager
def _readable(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise ModelBroken(f"{path}: the weights cannot be read: {error}; use an intact checkpoint") from error

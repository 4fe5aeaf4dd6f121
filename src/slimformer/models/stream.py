"""Models larger than memory: everything but the blocks is opened, and a block only while it is looked at.

A skeleton is the model the checkpoint names, built on the meta device: shapes without weights. What is outside the
blocks (embeddings, norms, heads) is read once it is asked for; the weights of block i are read when they are asked for
and given back afterwards. Files are mapped, not copied, so weights that are stored in the precision they are used in
take no memory of their own. Names in the files may lack the prefix of the headless model, or have it where the module
has none; what the module does not know is passed over, as when a model is loaded whole.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.errors import ModelBroken, ModelNotFound
from slimformer.models.architecture import Architecture, describe, fingerprint, parts
from slimformer.models.load import Loaded, find_model, require_usable

KINDS = {  # kinds of numbers as safetensors call them, in the order of its files turned round
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
BYTES = {kind: dtype.itemsize for dtype, kind in KINDS.items()}
FRACTIONS = {kind for dtype, kind in KINDS.items() if dtype.is_floating_point}
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


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

    def known_as(self, names: Mapping[str, str]) -> Weights:
        """Those of `names` only (from the name in the file to that of the module)."""
        back = {module: name for name, module in names.items()}
        files = {module: self.files[name] for module, name in back.items()}
        shapes = {module: self.shapes[name] for module, name in back.items()}
        kinds = {module: self.kinds[name] for module, name in back.items()}
        return Weights(self.folder, files, shapes, kinds, back)


@dataclass(frozen=True)
class Skeleton:
    """A model whose blocks have shapes only, and the files their weights are in."""

    loaded: Loaded
    architecture: Architecture
    weights: Weights
    dtype: torch.dtype

    @property
    def outside(self) -> list[str]:
        """The names of what is not in a block, each tensor once."""
        tied = self.loaded.model.all_tied_weights_keys
        return [n for n in self.weights.files if not n.startswith(f"{self.architecture.blocks}.") and n not in tied]

    def inside(self, i: int) -> list[str]:
        """The names of what is in block i."""
        return [name for name in self.weights.files if name.startswith(f"{self.architecture.blocks}.{i}.")]

    def read_outside(self) -> Skeleton:
        """Let what is outside the blocks be there. Cost: reading it."""
        model: Any = self.loaded.model
        for key, tensor in self.weights.read(self.outside, self.dtype):
            put(model, key, tensor)
        model.tie_weights()
        require_usable(model, self.loaded.name)
        return self

    @contextmanager
    def resident(self, i: int) -> Iterator[None]:
        """The weights of block i are there inside."""
        self.fill(self.loaded.model, i)
        try:
            yield
        finally:
            release(self.loaded.model, self.architecture, i)

    def fill(self, model: PreTrainedModel, i: int) -> None:
        """Give block i of `model`, this one or its twin, the weights in the files."""
        for name, tensor in self.weights.read(self.inside(i), self.dtype):
            put(model, name, tensor)

    def twin(self) -> PreTrainedModel:
        """A second skeleton that shares what is outside the blocks, as long as nobody replaces it."""
        model = self.loaded.model
        shared = [*model.parameters(), *model.buffers()]
        return copy.deepcopy(model, {id(tensor): tensor for tensor in shared if not tensor.is_meta})

    def fingerprint(self, seen: Callable[[str], None] = lambda _name: None) -> str:
        """As `architecture.fingerprint`, reading every weight once; NaN and infinite ones are refused on the way."""

        def read(name: str) -> Iterator[Tensor]:
            ((_, tensor),) = self.weights.map([name])
            for part in parts(tensor):
                part = part.to(self.dtype)
                if not bool(torch.isfinite(part).all()):
                    raise ModelBroken(f"{self.loaded.name}: the weights hold NaN or infinite values ({name})")
                yield part
            seen(name)

        return fingerprint(self.loaded.model, read)


def sketch(name: str | Path, *, dtype: torch.dtype = torch.float32) -> Skeleton:
    """MODEL in shapes, before any weight is read: config, tokenizer and the headers of its files.

    Refused (`ModelBroken`) where files do not hold what the module needs, or in other shapes.
    """
    found = find_model(name)
    stored = open_weights(found.folder)
    with torch.device("meta"):
        model: Any = found.model_class.from_config(found.config) if _is_auto(found) else found.model_class(found.config)
    model.eval().requires_grad_(False)
    require_usable(model, str(name))
    _make_buffers(model)
    weights = stored.known_as(_names(model, stored))
    _require_all(str(name), model, weights)
    loaded = Loaded(found.name, model, found.processor, found.folder, found.dtype, found.folder)
    return Skeleton(loaded, describe(model), weights, dtype)


def open_weights(folder: Path) -> Weights:
    """The files of a checkpoint, through its index or the one file there is. Only headers are read."""
    if (folder / INDEX).is_file():
        files = _indexed(folder)
    elif (folder / SINGLE).is_file():
        with _readable(folder / SINGLE) as tensors:
            files = dict.fromkeys(tensors.keys(), SINGLE)
    else:
        raise ModelNotFound(f"{str(folder)!r} holds no {SINGLE} and no {INDEX}, so it cannot be read block by block")
    shapes: dict[str, tuple[int, ...]] = {}
    kinds: dict[str, str] = {}
    for file in dict.fromkeys(files.values()):
        with _readable(folder / file) as tensors:
            present = set(tensors.keys())
            for name in (name for name, where in files.items() if where == file):
                if name not in present:
                    raise ModelBroken(f"{folder / file} does not hold {name}, which {INDEX} promises")
                part = tensors.get_slice(name)
                shapes[name] = tuple(part.get_shape())
                kinds[name] = part.get_dtype()
    return Weights(folder, files, shapes, kinds)


def _indexed(folder: Path) -> dict[str, str]:
    """The index, if it names files of this folder and nothing else."""
    try:
        found = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        files = {str(name): file for name, file in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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


def _is_auto(found: Any) -> bool:
    return not issubclass(found.model_class, PreTrainedModel)


def _make_buffers(model: Any) -> None:
    """Tables that no file holds, such as rotary angles, are computed as when the model is loaded."""
    for module in model.modules():
        empty = {name: buffer for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta}
        for name, buffer in empty.items():
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
        if empty:
            model._init_weights(module)


def _names(model: Any, weights: Weights) -> dict[str, str]:
    """From names in the files to those of the module: the same, or with the prefix of the headless model more or less.

    What the module lacks (tables older versions stored, the head of a model that is opened without) is left out.
    """
    known, prefix = model.state_dict().keys(), f"{model.base_model_prefix}."
    names = {key: key for key in weights.files if key in known}
    for key in [key for key in weights.files if key not in names]:
        for other in (prefix + key, key.removeprefix(prefix)):
            if other in known and other not in weights.files:
                names[key] = other
    return names


def _require_all(name: str, model: Any, weights: Weights) -> None:
    """Refuse a checkpoint that lacks a weight of the module, or has it in another shape."""
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    for key in (key for key in shapes if key not in weights.files and key not in model.all_tied_weights_keys):
        raise ModelBroken(f"{name}: this checkpoint cannot be streamed: {key} is not in its files; leave --memory out")
    for key in shapes.keys() & weights.shapes.keys():
        if shapes[key] != weights.shapes[key]:
            raise ModelBroken(
                f"{name}: {key} is {weights.shapes[key]} in its files and {shapes[key]} by config.json; "
                "use an intact checkpoint"
            )


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Let the parameter or buffer of that name be this tensor."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._parameters:
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    else:
        module._buffers[leaf] = tensor


def release(model: PreTrainedModel, architecture: Architecture, i: int) -> None:
    """Let block i have shapes only."""
    for module in model.get_submodule(f"{architecture.blocks}.{i}").modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty_like(parameter, device="meta")
                module._parameters[leaf] = nn.Parameter(empty, requires_grad=False)

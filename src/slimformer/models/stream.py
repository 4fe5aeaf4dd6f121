"""Models larger than memory: everything but the blocks is opened, and a block only while it is looked at.

A skeleton is the model the checkpoint names, built on the meta device: shapes without weights. What is outside the
blocks (embeddings, norms, heads) is read at once; the weights of block i are read when they are asked for and given
back afterwards. Files are mapped, not copied, so weights that are stored in the precision they are used in take no
memory of their own. The names in the files must be those of the module, one to one: nothing is renamed on the way.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.errors import ModelBroken, ModelNotFound
from slimformer.models.architecture import Architecture, describe, fingerprint
from slimformer.models.load import Loaded, find_model, require_usable

KINDS = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class Weights:
    """The tensors of a checkpoint: in which file each is, and its shape."""

    folder: Path
    files: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    kinds: frozenset[str] = frozenset()  # of numbers in them, as safetensors call them

    def is_mapped(self, dtype: torch.dtype) -> bool:
        """Are weights used as they are stored? Then they take no memory of their own."""
        return self.kinds == {KINDS.get(dtype)}

    def read(self, names: Iterable[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Tensors by name, floating ones in a precision; mapped from the file where that is the stored one."""
        by_file: dict[str, list[str]] = {}
        for name in names:
            by_file.setdefault(self.files[name], []).append(name)
        for file, some in by_file.items():
            with _readable(self.folder / file) as tensors:
                for name in some:
                    tensor = tensors.get_tensor(name)
                    yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class Skeleton:
    """A model whose blocks have shapes only, and the files their weights are in."""

    loaded: Loaded
    architecture: Architecture
    weights: Weights
    dtype: torch.dtype

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
        names = [name for name in self.weights.files if name.startswith(f"{self.architecture.blocks}.{i}.")]
        for name, tensor in self.weights.read(names, self.dtype):
            put(model, name, tensor)

    def twin(self) -> PreTrainedModel:
        """A second skeleton that shares what is outside the blocks, as long as nobody replaces it."""
        model = self.loaded.model
        shared = [*model.parameters(), *model.buffers()]
        return copy.deepcopy(model, {id(tensor): tensor for tensor in shared if not tensor.is_meta})

    def fingerprint(self, seen: Callable[[str], None] = lambda _name: None) -> str:
        """As `architecture.fingerprint`, reading every weight once; NaN and infinite ones are refused on the way."""

        def read(name: str) -> Tensor:
            ((_, tensor),) = self.weights.read([name], self.dtype)
            if not bool(torch.isfinite(tensor).all()):
                raise ModelBroken(f"{self.loaded.name}: the weights hold NaN or infinite values ({name})")
            seen(name)
            return tensor

        return fingerprint(self.loaded.model, read)


def open_skeleton(name: str | Path, *, dtype: torch.dtype = torch.float32) -> Skeleton:
    """Open MODEL without its blocks. Cost: reading what is outside of them.

    Refused (`ModelBroken`) where files and modules do not have the same names and shapes.
    """
    found = find_model(name)
    weights = open_weights(found.folder)
    with torch.device("meta"):
        model: Any = found.model_class.from_config(found.config) if _is_auto(found) else found.model_class(found.config)
    model.eval().requires_grad_(False)
    _make_buffers(model)
    architecture = describe(model)
    _require_one_to_one(str(name), model, weights)
    outside = [name for name in weights.files if not name.startswith(f"{architecture.blocks}.")]
    wanted = model.state_dict().keys() - model.all_tied_weights_keys.keys()
    for key, tensor in weights.read([key for key in outside if key in wanted], dtype):
        put(model, key, tensor)
    model.tie_weights()
    require_usable(model, str(name))
    loaded = Loaded(found.name, model, found.processor, found.folder, found.dtype, found.folder)
    return Skeleton(loaded, architecture, weights, dtype)


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
    kinds: set[str] = set()
    for file in dict.fromkeys(files.values()):
        with _readable(folder / file) as tensors:
            present = set(tensors.keys())
            for name in (name for name, where in files.items() if where == file):
                if name not in present:
                    raise ModelBroken(f"{folder / file} does not hold {name}, which {INDEX} promises")
                part = tensors.get_slice(name)
                shapes[name] = tuple(part.get_shape())
                kinds.add(part.get_dtype())
    return Weights(folder, files, shapes, frozenset(kinds))


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


def _require_one_to_one(name: str, model: Any, weights: Weights) -> None:
    """Refuse a checkpoint whose names or shapes are others than those of the module."""
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    tied = model.all_tied_weights_keys
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    unknown = [key for key in weights.files if key not in shapes and not any(p.search(key) for p in ignored)]
    missing = [key for key in shapes if key not in weights.files and key not in tied]
    for key in (*missing, *unknown):
        where = "is not in its files" if key in shapes else "is in its files and not in the model"
        raise ModelBroken(f"{name}: this checkpoint cannot be streamed: {key} {where}; leave --memory out")
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

"""A checkpoint written block by block: one safetensors file for each block, one for the rest, and their index."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from slimformer.checkpoint.atomic import one_clear_line
from slimformer.errors import WorkTorn
from slimformer.files.disk import flush
from slimformer.files.seals import read_sealed_json, sealed_json
from slimformer.models import Architecture
from slimformer.models.architecture import HEADS, NEURONS
from slimformer.models.stream import put
from slimformer.models.weight_files import INDEX
from slimformer.nn import ragged

GENERATION = "generation_config.json"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Tensors in one file, floating ones in a precision; there whole or not at all."""
    stored = {name: (t.to(dtype) if t.is_floating_point() else t).contiguous() for name, t in tensors.items()}
    partial = path.with_name(f".{path.name}.partial")
    with one_clear_line(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(stored, partial, metadata={"format": "pt"})
        flush(partial)
        os.replace(partial, path)


def block_tensors(model: PreTrainedModel, architecture: Architecture, i: int) -> dict[str, Tensor]:
    """The weights of block i under their full names."""
    prefix = architecture.blocks[i].path
    return {f"{prefix}.{name}": tensor for name, tensor in model.get_submodule(prefix).state_dict().items()}


def outside_tensors(model: Any, architecture: Architecture) -> dict[str, Tensor]:
    """The weights outside the blocks; of those that are one tensor under two names, the one files hold."""
    tied = model.all_tied_weights_keys
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not architecture.inside(name) and name not in tied
    }


def write_block(path: Path, model: PreTrainedModel, architecture: Architecture, i: int, dtype: torch.dtype) -> None:
    """Block i in a file, and beside it which modules it has of ours, so that `restore_shapes` can go on from there."""
    here = architecture.blocks[i]
    ranks = [getattr(model.get_submodule(site.module), "ranks", None) for site in here.heads]
    paths: list[Any] = [getattr(model.get_submodule(site.module), "bypass", None) for site in here.neurons]
    own: dict[str, Any] = {"ranks": next((each for each in ranks if each), None), "path": None}
    if path_beside := next((each for each in paths if each is not None), None):
        own["path"] = {"rank": path_beside[0].out_features, "bias": path_beside[-1].bias is not None}
    write_tensors(path, block_tensors(model, architecture, i), dtype)
    with one_clear_line(path):
        path.with_suffix(".json").write_text(sealed_json(own))
        flush(path.with_suffix(".json"))


def restore_shapes(path: Path, model: PreTrainedModel, architecture: Architecture, i: int) -> None:
    """Give block i of `model` the shapes of the block in a file, without its weights."""
    here = architecture.blocks[i]
    block = model.get_submodule(here.path)
    try:
        own = read_sealed_json(path.with_suffix(".json"))
    except (OSError, ValueError) as error:
        raise WorkTorn(f"{path.with_suffix('.json')} cannot be read ({error})") from error
    if own["ranks"] is not None:
        heads = here.one(HEADS)
        ragged.put_ranks(block, heads.attention.table(heads.unit), own["ranks"], **heads.sizes)
    if own["path"] is not None:
        neurons = here.one(NEURONS)
        ragged.put_bypass(block, neurons.part.module, width=neurons.outer, **own["path"])
    with safe_open(path, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            shape = tensors.get_slice(name).get_shape()
            put(model, name, torch.empty(shape, device="meta", dtype=model.dtype))
    for layer in block.modules():
        if isinstance(layer, Conv1D):
            layer.nx, layer.nf = layer.weight.shape
        elif isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape


def store_as(path: Path, source: Path, dtype: torch.dtype) -> Path:
    """The tensors of a file in another one, in a precision."""
    with safe_open(source, framework="pt") as tensors:
        write_tensors(path, {name: tensors.get_tensor(name) for name in tensors.keys()}, dtype)  # noqa: SIM118
    return path


def read_block(path: Path, model: nn.Module, dtype: torch.dtype) -> None:
    """Give a block the weights in a file."""
    with safe_open(path, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            put(model, name, tensors.get_tensor(name).to(dtype))


def assemble(folder: Path, shards: list[Path], model: Any, dtype: torch.dtype, source: Path | None) -> None:
    """Shards under their customary names, index, config and generation config. Files are linked where that is possible.

    `model` is a skeleton whose config tells the sizes.
    """
    places: dict[str, str] = {}
    total = 0
    for n, shard in enumerate(shards, 1):
        name = f"model-{n:05d}-of-{len(shards):05d}.safetensors"
        _link(shard, folder / name)
        with safe_open(shard, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                places[key] = name
                total += tensors.get_tensor(key).nbytes
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    model.config.architectures, model.config.dtype = [type(model).__name__], dtype
    model.config.save_pretrained(folder)
    if source is not None and (source / GENERATION).is_file():
        shutil.copyfile(source / GENERATION, folder / GENERATION)


def _link(source: Path, target: Path) -> None:
    """The same file under a second name, so that the work can go on if what follows fails; else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)

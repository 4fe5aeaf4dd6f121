"""Quantized models as transformers loads them: compressed-tensors, format pack-quantized, weights only.

The packed model is never run here; it is what is written. `from_pretrained` unpacks it on its own wherever
compressed-tensors is installed, and computes with s (q − z): the very weights that were measured.

Tables of embeddings are looked up, not multiplied with, and transformers cannot hold a packed one: a config with such a
table asks for plain weights when it is opened (`dequantize`). There s (q − z) is taken in the precision of s, so steps
are then stored in single precision, otherwise in bfloat16; and all layers are read in the way of the first, so they
must have the same bits and groups of the same width (`rewrite.quantize.grid_with_tables`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from slimformer.checkpoint.tensor_file import Tensors, as_saved, file_bytes
from slimformer.checkpoint.verify import in_float32
from slimformer.decompose.rounding import Grid, Rounded
from slimformer.errors import ExtraNotInstalled, UnknownArchitecture
from slimformer.messages.words import option
from slimformer.models.architecture import base_path
from slimformer.models.packed import WORD, pack
from slimformer.rewrite.quantize import Quantized

EXTRA = "compressed_tensors"
NO_ZERO_POINTS = ("5.23.0",)  # these expect packed zero points in the shape of unpacked ones, and refuse their size


def require_reader(*, symmetric: bool = True) -> None:
    """Refuse, before the work, where what will be written could not be read again."""
    if find_spec(EXTRA) is None:
        raise ExtraNotInstalled(
            "quantized weights are read by compressed-tensors, which is not installed; run: pip install "
            "'slimformer[quant]'"
        )
    if not symmetric and transformers.__version__ in NO_ZERO_POINTS:
        raise ExtraNotInstalled(
            f"transformers {transformers.__version__} does not open steps from the lowest weight to the highest "
            f"({option('symmetric', False)}); leave it out, or install another version"
        )


def require_packable(model: PreTrainedModel, layers: Mapping[str, Any]) -> None:
    """Refuse layers that the format cannot hold: it knows linear layers and tables alone."""
    other = [name for name in layers if not isinstance(model.get_submodule(name), nn.Linear | nn.Embedding)]
    if other:
        kind = type(model.get_submodule(other[0])).__name__
        raise UnknownArchitecture(
            f"{type(model).__name__} has layers of the kind {kind} ({other[0]}), which the format of quantized weights "
            "does not know; it holds nn.Linear and nn.Embedding alone"
        )


def packed(quantized: Quantized, model: PreTrainedModel) -> PreTrainedModel:
    """A copy of `model` (the same sizes, in the precision to store) that holds codes and steps in place of weights."""
    require_packable(model, quantized.layers)
    out = copy.deepcopy(model)
    steps = step_dtype(model, quantized.layers)
    for name, rounded in quantized.layers.items():
        layer: Any = out.get_submodule(name)
        bits, (rows, columns) = rounded.grid.bits, rounded.Q.shape
        for sharing in [each for each in out.modules() if getattr(each, "weight", None) is layer.weight]:
            del sharing.weight  # type: ignore[union-attr]  # a tied head is tied again when the table is opened
        _hold(layer, "weight_packed", pack(rounded.Q, bits))
        _hold(layer, "weight_scale", rounded.s.to(steps))
        _hold(layer, "weight_shape", torch.tensor([rows, columns]))
        if not rounded.grid.symmetric:
            _hold(layer, "weight_zero_point", pack(rounded.z.mT, bits).mT.contiguous())
    out.config.quantization_config = quantization_config(quantized.layers, base_path(model))
    if _has_tables(model, quantized.layers):
        out.config.quantization_config["dequantize"] = True
    return out


def step_dtype(model: PreTrainedModel, layers: Iterable[str]) -> torch.dtype:
    """The precision steps are stored in."""
    return torch.float32 if _has_tables(model, layers) else torch.bfloat16


def _has_tables(model: PreTrainedModel, layers: Iterable[str]) -> bool:
    return any(isinstance(model.get_submodule(name), nn.Embedding) for name in layers)


@torch.no_grad()
def unpacked(quantized: Quantized, model: PreTrainedModel) -> PreTrainedModel:
    """What a reader computes with once `packed(quantized, model)` is on disk, in single precision.

    s (q − z) takes up to 16 binary digits, which float32 has and half precision has not: a model cast to the precision
    of everything else would not be the one in the file.
    """
    exact = in_float32(model)
    if exact is not model:
        for name, rounded in quantized.layers.items():
            exact.get_submodule(name).weight.copy_(rounded.W)  # type: ignore[operator, union-attr]
    return exact


def stored_bytes(quantized: Quantized, dtype: torch.dtype) -> int:
    """What the file of weights takes, to the byte: codes and steps, all others in that precision, and the header."""
    grids = {name: rounded.grid for name, rounded in quantized.layers.items()}
    return file_bytes(stored_tensors(quantized.model, dtype, grids))


def stored_tensors(model: PreTrainedModel, dtype: torch.dtype, grids: Mapping[str, Grid]) -> Tensors:
    """Kind and shape of every tensor on disk if the weights of these layers are packed; it needs no codes."""
    names = {f"{layer}.weight": layer for layer in grids}
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    steps = step_dtype(model, grids)
    own = dict(model.named_parameters())  # what is tied is there once
    tied = dict(model.named_parameters(remove_duplicate=False)).keys() - own.keys()
    for name, tensor in model.state_dict().items():
        if name in names:
            tensors |= _packed_tensors(name, tensor.shape, grids[names[name]], steps)
        elif name not in tied:
            tensors[name] = (dtype if tensor.is_floating_point() else tensor.dtype, tuple(tensor.shape))
    return as_saved(model, tensors)


def _packed_tensors(
    weight: str, shape: torch.Size, grid: Grid, steps: torch.dtype
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Words of codes and zeros, steps, and two integers of eight bytes for the shape."""
    rows, columns = shape
    groups = columns // grid.width(columns)
    zeros = {} if grid.symmetric else {"zero_point": (torch.int32, (_words(rows, grid.bits), groups))}
    parts: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "packed": (torch.int32, (rows, _words(columns, grid.bits))), "scale": (steps, (rows, groups)),
        "shape": (torch.int64, (2,)), **zeros,
    }  # fmt: skip
    return {f"{weight}_{part}": tensor for part, tensor in parts.items()}


def _words(numbers: int, bits: int) -> int:
    return -(-numbers * bits // WORD)


def quantization_config(layers: Mapping[str, Rounded], above: str) -> dict[str, Any]:
    """What config.json says: layers that share bits and groups in one entry.

    Layers go by their names inside the headless model (`above` is the path to it), which may be opened alone.
    """
    groups: dict[tuple[int, bool, int | None], list[str]] = {}
    widths = {full: rounded.Q.shape[1] // rounded.s.shape[1] for full, rounded in layers.items()}
    one = len({*widths.values()}) == 1  # then a row that is one group needs no entry of its own
    for full, rounded in layers.items():
        name = rf"re:(.*\.)?{re.escape(full.removeprefix(above))}$"
        whole = widths[full] == rounded.Q.shape[1] and not one
        key = (rounded.grid.bits, rounded.grid.symmetric, None if whole else widths[full])
        groups.setdefault(key, []).append(name)
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": _scheme(*key, names) for i, (key, names) in enumerate(groups.items())},
        "ignore": [],
    }


def _scheme(bits: int, symmetric: bool, group: int | None, names: list[str]) -> dict[str, Any]:
    weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    weights |= {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    return {"targets": names, "weights": weights}


def _hold(layer: nn.Module, name: str, tensor: torch.Tensor) -> None:
    layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

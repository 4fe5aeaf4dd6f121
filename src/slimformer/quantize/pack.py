"""Quantized models as transformers loads them: compressed-tensors, format pack-quantized, weights only.

The packed model is never run here; it is what is written. `from_pretrained` unpacks it on its own wherever
compressed-tensors is installed, and computes with s (q − z): the very weights that were measured.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from slimformer.checkpoint.verify import in_float32
from slimformer.decompose.rounding import Rounded
from slimformer.errors import ExtraNotInstalled, UnknownArchitecture
from slimformer.models.architecture import base_path
from slimformer.models.packed import WORD, pack
from slimformer.quantize.apply import Quantized

EXTRA = "compressed_tensors"


def require_reader() -> None:
    """Refuse, before the work, where what will be written could not be read again."""
    if find_spec(EXTRA) is None:
        raise ExtraNotInstalled(
            "quantized weights are read by compressed-tensors, which is not installed; run: pip install "
            "'slimformer[quant]'"
        )


def require_packable(model: PreTrainedModel, layers: Mapping[str, Any]) -> None:
    """Refuse layers that the format cannot hold: it knows nn.Linear alone."""
    other = [name for name in layers if not isinstance(model.get_submodule(name), nn.Linear)]
    if other:
        kind = type(model.get_submodule(other[0])).__name__
        raise UnknownArchitecture(
            f"{type(model).__name__} has layers of the kind {kind} ({other[0]}), which the format of quantized weights "
            "does not know; it holds nn.Linear alone"
        )


def packed(quantized: Quantized, model: PreTrainedModel) -> PreTrainedModel:
    """A copy of `model` (the same sizes, in the precision to store) that holds codes and steps in place of weights."""
    require_packable(model, quantized.layers)
    out = copy.deepcopy(model)
    for name, rounded in quantized.layers.items():
        layer: Any = out.get_submodule(name)
        bits, (rows, columns) = rounded.grid.bits, rounded.Q.shape
        del layer.weight
        _hold(layer, "weight_packed", pack(rounded.Q, bits))
        _hold(layer, "weight_scale", rounded.s)
        _hold(layer, "weight_shape", torch.tensor([rows, columns]))
        if not rounded.grid.symmetric:
            _hold(layer, "weight_zero_point", pack(rounded.z.mT, bits).mT.contiguous())
    out.config.quantization_config = quantization_config(quantized.layers, base_path(model))
    return out


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
    """What the weights take on disk: packed layers to the byte, all others in that precision."""
    size = torch.empty((), dtype=dtype).element_size()
    weights = sum(parameter.numel() for parameter in quantized.model.parameters())
    for rounded in quantized.layers.values():
        weights -= rounded.Q.numel()
    return weights * size + sum(map(_bytes, quantized.layers.values()))


def _bytes(rounded: Rounded) -> int:
    """Words of codes and zeros, steps in two bytes, and two integers of eight for the shape."""
    (rows, columns), groups, bits = rounded.Q.shape, rounded.s.shape[1], rounded.grid.bits
    zeros = 0 if rounded.grid.symmetric else groups * -(-rows * bits // WORD)
    return 4 * (rows * -(-columns * bits // WORD) + zeros) + 2 * rows * groups + 16


def quantization_config(layers: Mapping[str, Rounded], above: str) -> dict[str, Any]:
    """What config.json says: layers that share bits and groups in one entry.

    Layers go by their names inside the headless model (`above` is the path to it), which may be opened alone.
    """
    groups: dict[tuple[int, bool, int | None], list[str]] = {}
    for full, rounded in layers.items():
        name = rf"re:(.*\.)?{re.escape(full.removeprefix(above))}$"
        width = rounded.Q.shape[1] // rounded.s.shape[1]
        whole = width == rounded.Q.shape[1]
        key = (rounded.grid.bits, rounded.grid.symmetric, None if whole else width)
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

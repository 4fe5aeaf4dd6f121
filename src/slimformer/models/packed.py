"""Integers of a few bits inside words of 32, and checkpoints that hold weights so (compressed-tensors, pack-quantized).

    weight_packed        o × ⌈d b / 32⌉ words; column j is bits b j … b j + b − 1 of its row, as q + 2ᵇ⁻¹
    weight_scale         o × groups, in half precision
    weight_zero_point    packed the same way along rows; only on asymmetric grids
    weight_shape         o, d

transformers reads such a folder by itself where compressed-tensors is installed. Here it is opened without, as a model
with plain weights: they are what the rest of the package works on.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimformer.errors import ModelBroken, UnknownArchitecture
from slimformer.models.weight_files import Weights

WORD = 32
PARTS = ("packed", "scale", "zero_point", "shape", "g_idx")


def pack(Q: Tensor, bits: int) -> Tensor:
    """Signed integers (rows × d) in words of 32 bits. `bits` must divide 32."""
    each = WORD // bits
    room = torch.zeros(len(Q), -Q.shape[1] % each, dtype=torch.int64, device=Q.device)
    codes = torch.cat([Q.to(torch.int64) + 2 ** (bits - 1), room], 1).view(len(Q), -1, each)
    words = (codes << bits * torch.arange(each, device=Q.device)).sum(-1)
    return torch.where(words < 2 ** (WORD - 1), words, words - 2**WORD).to(torch.int32)


def unpack(words: Tensor, bits: int, d: int) -> Tensor:
    """The first d signed integers of every row of words."""
    each = WORD // bits
    codes = (words.to(torch.int64)[..., None] >> bits * torch.arange(each)) & (2**bits - 1)
    return (codes.flatten(1)[:, :d] - 2 ** (bits - 1)).to(torch.int8)


def is_packed(config: Any) -> bool:
    """Does a config say that weights are packed in the way this file reads?"""
    packing = said(config)
    return packing.get("quant_method") == "compressed-tensors" and packing.get("format") == "pack-quantized"


def said(config: Any) -> dict[str, Any]:
    """What a config says of quantization; nothing where it says nothing."""
    packing = getattr(config, "quantization_config", None) or {}
    if not isinstance(packing, dict):
        return dict(packing.to_dict()) if hasattr(packing, "to_dict") else {"quant_method": packing}
    return packing


def require_readable(config: Any, where: object) -> None:
    """Refuse weights that are stored in a way only inference kernels read: nothing could be fitted to them."""
    packing = said(config)
    if packing and not is_packed(config):
        how = " ".join(str(packing[key])[:60] for key in ("quant_method", "format") if packing.get(key)) or "some way"
        raise UnknownArchitecture(
            f"{where}: the weights are quantized ({how}), which is not read here; give the model as it was before"
        )


def plain_names(names: Iterable[str]) -> list[str]:
    """The names weights have once they are unpacked."""
    plain = []
    for name in names:
        layer, _, part = name.rpartition(".weight_")
        if not layer or part not in PARTS:
            plain.append(name)
        elif part == "packed":
            plain.append(f"{layer}.weight")
    return plain


def read_packed(weights: Weights, config: Any) -> dict[str, Tensor]:
    """All weights of a folder, the packed ones as s (q − z) in single precision, under the names they have on disk."""
    folder, tensors = weights.folder, dict(weights.map(weights.files))
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        layer = name.removesuffix(".weight_packed")
        parts = {part: tensors.pop(f"{layer}.weight_{part}", None) for part in PARTS}
        if parts["g_idx"] is not None:
            raise UnknownArchitecture(
                f"{folder}: columns of {layer} are in groups out of their order (act-order), which is not read here; "
                "give the model as it was before"
            )
        bits = _bits(layer, said(config).get("config_groups"), folder)
        tensors[f"{layer}.weight"] = _dense(parts, bits, f"{folder}: {layer}")
    return tensors


def _bits(layer: str, groups: Any, folder: Path) -> int:
    """How many bits the codes of a layer have: all groups here share it, unless their targets name layers."""
    schemes = [each for each in groups.values() if isinstance(each, dict)] if isinstance(groups, dict) else []
    own = [each for each in schemes if any(_names(target, layer) for target in each.get("targets") or ())][:1]
    weights = [each.get("weights") for each in own or schemes]
    widths = {each.get("num_bits") for each in weights if isinstance(each, dict)}
    bits = widths.pop() if len(widths) == 1 else None
    if not isinstance(bits, int) or not 0 < bits <= 8 or WORD % bits:
        raise ModelBroken(
            f"{folder}: config.json does not say with how many bits {layer} is stored (1, 2, 4 and 8 are read)"
        )
    return bits


def _names(target: Any, layer: str) -> bool:
    """Does a target of a config name a layer? A pattern that is none names nothing."""
    with suppress(re.error):
        return isinstance(target, str) and target.startswith("re:") and bool(re.match(target[3:], layer))
    return False


def _dense(parts: dict[str, Tensor | None], bits: int, what: str) -> Tensor:
    words, scale, zeros, shape = (parts[name] for name in ("packed", "scale", "zero_point", "shape"))
    if words is None or scale is None or shape is None:
        raise ModelBroken(f"{what}: a packed weight comes without its scale or its shape; use an intact checkpoint")
    rows, d = (int(size) for size in shape) if shape.shape == (2,) and not shape.is_floating_point() else (0, 0)
    groups = scale.shape[1] if scale.dim() == 2 else 0
    fits = min(rows, d, groups) > 0 and d % groups == 0 and scale.shape == (rows, groups)
    fits &= words.dtype == torch.int32 and words.shape == (rows, -(-d * bits // WORD))
    fits &= zeros is None or (zeros.dtype == torch.int32 and zeros.shape == (-(-rows * bits // WORD), groups))
    if not fits:
        raise ModelBroken(
            f"{what}: codes, steps and shape do not fit each other at {bits} bits ({tuple(words.shape)}, "
            f"{tuple(scale.shape)} and {rows} × {d}); use an intact checkpoint"
        )
    Q, s = unpack(words, bits, d).float(), scale.float()
    if zeros is not None:
        z = unpack(zeros.mT.contiguous(), bits, rows).mT.float()
        Q -= z.repeat_interleave(d // groups, 1)
    return Q * s.repeat_interleave(d // groups, 1)


def open_packed(
    model_class: Any, weights: Weights, config: Any, dtype: torch.dtype | None
) -> tuple[Any, dict[str, Any]]:
    """The model with plain weights, and what transformers says of loading it."""
    plain = copy.deepcopy(config)
    del plain.quantization_config
    wanted = dtype or getattr(plain, "dtype", None) or torch.float32
    opened: tuple[Any, dict[str, Any]] = model_class.from_pretrained(
        None, config=plain, state_dict=read_packed(weights, config), dtype=wanted, output_loading_info=True
    )
    opened[0].config.name_or_path = str(weights.folder)
    return opened

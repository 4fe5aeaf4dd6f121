"""How many bytes a safetensors file takes, before it is written.

    8 bytes: length of the header    JSON, padded with spaces to a multiple of 8    the tensors, without gaps

The header names every tensor, its kind, its shape and where it lies. In tiny models it is a good part of the file, so
a stated size has to count it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from slimformer.models.weight_files import KINDS

ORDER = {dtype: i for i, dtype in enumerate(KINDS)}  # files hold the widest kinds first, and names in their order

Tensors = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def file_bytes(tensors: Tensors) -> int:
    """Bytes of the file that holds tensors of these names, kinds and shapes, as transformers writes it."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors, key=lambda name: (-ORDER[tensors[name][0]], name.encode())):
        dtype, shape = tensors[name]
        start, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": KINDS[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + -(-len(text) // 8) * 8 + end


def as_saved(model: PreTrainedModel, tensors: Tensors) -> Tensors:
    """The same under the names files have, which transformers translates for some types (ViT) as it saves and loads."""
    blank = {name: torch.empty(shape, dtype=dtype, device="meta") for name, (dtype, shape) in tensors.items()}
    saved = revert_weight_conversion(model, blank)
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in saved.items()}

"""Files of our own that carry a checksum of what they hold, so that readers notice a changed bit.

For single files that machines write for themselves: caches, states of work that goes on, solved heads. Files of a
result or of statistics stand together, and people edit plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from slimformer.files.reading import LARGE, read_own_json, require_regular

SEAL = "sha256"


def sealed_json(content: Any) -> str:
    """JSON text of a value with its checksum."""
    text = json.dumps(content, allow_nan=False)
    return f'{{"{SEAL}": "{_hash(text.encode())}", "content": {text}}}\n'


def read_sealed_json(path: Path) -> Any:
    """The value again; a ValueError where it is not what was written, an OSError where nothing can be read."""
    content = read_own_json(path, LARGE)
    if not isinstance(content, dict) or content.keys() != {SEAL, "content"}:
        raise ValueError("it has no checksum")
    if _hash(json.dumps(content["content"]).encode()) != content[SEAL]:
        raise ValueError("it is not what was written: its checksum is another")
    return content["content"]


def save_sealed(tensors: Mapping[str, Tensor], path: Path, texts: Mapping[str, str]) -> None:
    """Tensors and texts in one safetensors file, with a checksum of both."""
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(stored, path, metadata={**texts, SEAL: _seal(stored, texts)})


def read_sealed(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and texts again; a ValueError where they are not what was written."""
    require_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            texts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    if texts.pop(SEAL, None) != _seal(tensors, texts):
        raise ValueError("it is not what was written: its checksum is another")
    return tensors, texts


def _seal(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    kinds = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
    digest = hashlib.sha256(json.dumps([dict(texts), kinds], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()

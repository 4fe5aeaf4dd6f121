"""What makes a folder a sentence-transformers model: its modules, and one more module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from slimformer.files.reading import read_json

MODULES = "modules.json"
LONGEST = 200  # characters of the path of a part
KIND = "sentence_transformers.models."


def sentence_modules(source: Path) -> list[dict[str, Any]]:
    """The parts of a sentence-transformers model whose first part, with path "", is the transformer itself.

    None where a part is no class of sentence-transformers: its code stays behind.
    """
    try:
        modules = read_json(source / MODULES)
        paths = [str(module["path"]) for module in modules]
        kinds = [str(module["type"]) for module in modules]
        inside = all((source / path).resolve().is_relative_to(source.resolve()) for path in paths)
        inside = inside and all(len(path) <= LONGEST for path in paths)
    except (OSError, ValueError, TypeError, KeyError):
        return []
    known = all(kind.startswith("sentence_transformers.") for kind in kinds)
    return list(modules) if inside and known and paths[:1] == [""] and "" not in paths[1:] else []


def kinds_of(modules: list[dict[str, Any]]) -> list[str]:
    """The classes of modules, without the packages they are in."""
    return [str(module["type"]).rsplit(".", 1)[-1] for module in modules]


def with_dense(modules: list[dict[str, Any]], W: Tensor) -> dict[str, bytes]:
    """The files of a linear module that follows the pooling: W x, without bias, and the new list of modules."""
    at = kinds_of(modules).index("Pooling") + 1
    folder = f"{at}_Dense"
    config = {
        "in_features": W.shape[1], "out_features": W.shape[0], "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }  # fmt: skip
    longer = [*modules[:at], {"path": folder, "type": f"{KIND}Dense"}, *modules[at:]]
    listed = [{"idx": i, "name": str(i), "path": each["path"], "type": each["type"]} for i, each in enumerate(longer)]
    return {
        MODULES: json.dumps(listed, indent=2).encode(),
        f"{folder}/config.json": json.dumps(config, indent=2).encode(),
        f"{folder}/model.safetensors": save({"linear.weight": W.contiguous()}),
    }

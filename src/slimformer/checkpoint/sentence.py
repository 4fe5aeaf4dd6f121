"""What makes a folder a sentence-transformers model: its modules, how they pool, and one more module."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from slimformer.files.reading import read_json

MODULES = "modules.json"
LONGEST = 200  # characters of the path of a part
KIND = "sentence_transformers.models."
DENSE_AND_NORM = ["Dense", "Normalize"]


@dataclass(frozen=True)
class Pooling:
    """How a sentence-transformers folder makes one vector of hidden states; `normalize` to length one.

    `W` is a linear module after the pooling: it maps embeddings to others, often to shorter ones.
    """

    kind: str  # mean, cls
    normalize: bool
    W: Tensor | None = field(default=None, compare=False, repr=False)


MEAN = Pooling("mean", normalize=True)  # of what says nothing


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


def pooled(states: Tensor, mask: Tensor, how: Pooling) -> Tensor:
    """One vector for each sequence: the mean of its real positions, or its first position."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    vector = states[:, 0] if how.kind == "cls" else (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    vector = vector if how.W is None else vector @ how.W.to(vector).mT
    return nn.functional.normalize(vector, dim=-1) if how.normalize else vector


def pooling_of(folder: Path | None) -> Pooling | None:
    """What `modules.json` says, where it is a transformer, a mean or first-token pooling, and perhaps a linear module
    without bias (as the step `embedding` writes it) and a norm."""
    try:
        assert folder is not None
        modules = sentence_modules(folder)
        kinds = kinds_of(modules)
        if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"], ["Dense"], DENSE_AND_NORM):
            return None
        config = read_json(folder / modules[1]["path"] / "config.json")
        W = linear_of(folder / modules[2]["path"]) if "Dense" in kinds else None
    except (AssertionError, OSError, ValueError, TypeError, KeyError, SafetensorError):
        return None
    if not isinstance(config, dict):
        return None
    if isinstance(config.get("pooling_mode"), str):
        on = {config["pooling_mode"]}
    else:
        on = {name.removeprefix("pooling_mode_") for name, value in config.items() if value is True}
    kind = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
    modes = {kind.get(str(mode), str(mode)) for mode in on - {"include_prompt"}}
    return Pooling(modes.pop(), "Normalize" in kinds, W) if modes in ({"mean"}, {"cls"}) else None


def linear_of(folder: Path) -> Tensor:
    """The weight of a `Dense` module of sentence-transformers; refused (ValueError) where it is more than a product."""
    config, tensors = read_json(folder / "config.json"), load_file(folder / "model.safetensors")
    activation = str(config.get("activation_function", ""))
    if set(tensors) != {"linear.weight"} or not activation.endswith(".Identity"):
        raise ValueError(f"{folder} has a bias or {activation}")
    return tensors["linear.weight"]

"""Where training starts from: the weights of a folder, whatever head they had, with the head the task needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedModel

from slimformer.errors import BadExperiment
from slimformer.models.fetch import find_place
from slimformer.models.opening import Opening

ENOUGH = 0.5  # of the numbers of a model have to come from the folder; the rest are a fresh head


def folder_of(start: str) -> Path:
    """The folder of a model: a path, a demo or a hub id."""
    place = find_place(start, Opening())
    if place.gguf:
        raise BadExperiment(f"start: {start} is one GGUF file, which is not trained; give a folder of safetensors")
    return place.folder


def started(auto: Any, folder: Path, fields: dict[str, Any], facts: dict[str, Any]) -> PreTrainedModel:
    """The model in a folder in single precision, with the classes of the data and the fields the file changes.

    Weights of another shape are taken afresh in the head of classes alone; anywhere else they are a mistake.
    """
    classes = {name: value for name, value in facts.items() if name in ("id2label", "label2id")}
    changes = {**classes, **{name: value for name, value in fields.items() if name != "model_type"}}
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        _require_fit(config, fields, facts, folder)
        model, info = auto.from_pretrained(
            folder, config=_changed(config, changes, folder), dtype=torch.float32, trust_remote_code=False,
            ignore_mismatched_sizes=True, output_loading_info=True, use_safetensors=True,
        )  # fmt: skip
    except BadExperiment:
        raise
    except Exception as error:  # configs, weights and models raise whatever they do
        raise BadExperiment(f"start: no {auto.__name__} opens {folder}: {in_one_line(error)}") from error
    _require_its_own(model, info, folder, len(facts.get("id2label", ())))
    return model


def _changed(config: Any, changes: dict[str, Any], folder: Path) -> Any:
    unknown = sorted(name for name in changes if not hasattr(config, name))
    if unknown:
        raise BadExperiment(f"start: {config.model_type} in {folder} has no field {unknown[0]!r}")
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def _require_fit(config: Any, fields: dict[str, Any], facts: dict[str, Any], folder: Path) -> None:
    if fields.get("model_type", config.model_type) != config.model_type:
        raise BadExperiment(f"start: {folder} is a {config.model_type}, not a {fields['model_type']}")
    for name, wanted in facts.items():
        held = getattr(config, name, None)
        if name in ("vocab_size", "max_position_embeddings") and held is not None and held < wanted:
            what = "its tokenizer" if name == "vocab_size" else "max_length"
            raise BadExperiment(f"start: {folder} has a {name} of {held:,}, and {what} needs {wanted:,}")


def _require_its_own(model: PreTrainedModel, info: dict[str, Any], folder: Path, classes: int) -> None:
    """Refuse weights that do not fit, and folders that hold too few of them."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    other = [each[0] if isinstance(each, tuple) else each for each in info["mismatched_keys"]]
    wrong = [name for name in other if name in shapes and shapes[name][0] != classes]
    if wrong:
        raise BadExperiment(f"start: {wrong[0]} in {folder} is not {' × '.join(map(str, shapes[wrong[0]]))}")
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    fresh = sum(sizes.get(name, 0) for name in {*info["missing_keys"], *other})
    if fresh > (1 - ENOUGH) * sum(sizes.values()):
        raise BadExperiment(f"start: {folder} has hardly any weights of a {type(model).__name__}")


def in_one_line(error: Exception) -> str:
    """What a library said, whole; its kind where that alone would not tell (a KeyError says only the key)."""
    line = " ".join(str(error).split())
    return line if isinstance(error, ValueError | StrictDataclassError) and line else f"{type(error).__name__}: {line}"

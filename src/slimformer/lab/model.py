"""Models by the names and fields of their configs. No architecture is known here: whatever transformers can build."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from slimformer.errors import BadExperiment
from slimformer.lab.settings import Task
from slimformer.lab.start import in_one_line, started

CLASSES: dict[Task, Any] = {
    "image-classes": AutoModelForImageClassification, "text-classes": AutoModelForSequenceClassification,
    "masked-lm": AutoModelForMaskedLM, "causal-lm": AutoModelForCausalLM,
}  # fmt: skip


def build(task: Task, fields: dict[str, Any], facts: dict[str, Any], start: Path | None = None) -> PreTrainedModel:
    """A model with fresh weights, or with those in a folder. What the data say (sizes, classes) holds where the fields
    say nothing."""
    if start is not None:
        return started(CLASSES[task], start, fields, facts)
    require_known(fields)
    _require_classes(fields, facts)
    known = {name: value for name, value in facts.items() if name not in fields and _knows(fields, name)}
    inner = {name: value for name, value in fields.items() if name != "model_type"}
    try:
        config = AutoConfig.for_model(fields["model_type"], **known, **inner)
        if (getattr(config, "num_hidden_layers", None) or 0) < 0:
            raise ValueError(f"num_hidden_layers is {config.num_hidden_layers}")
        return CLASSES[task].from_config(config)
    except Exception as error:  # configs and models raise whatever their arithmetic does
        reason = in_one_line(error)
        raise BadExperiment(f"no {fields['model_type']} for {task} can be built of these fields: {reason}") from error


def _require_classes(fields: dict[str, Any], facts: dict[str, Any]) -> None:
    stated, classes = fields.get("num_labels"), facts.get("id2label")
    if stated is not None and classes is not None and stated != len(classes):
        raise BadExperiment(f"num_labels is {stated} and the data have {len(classes)} classes; leave it out")


def require_known(fields: dict[str, Any]) -> None:
    """Configs keep fields they do not know without a word; a slip of the pen would train another model."""
    kind = fields["model_type"]
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        near = difflib.get_close_matches(str(kind), list(CONFIG_MAPPING.keys()))
        hint = f"; did you mean {' or '.join(near)}?" if near else "; e.g. vit, bert, gpt2"
        raise BadExperiment(f"there is no model_type {kind!r}{hint}")
    for name in fields:
        if not _knows(fields, name):
            near = difflib.get_close_matches(
                name, [*CONFIG_MAPPING[kind]().to_dict(), *CONFIG_MAPPING[kind].attribute_map]
            )
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise BadExperiment(f"{kind} has no field {name!r}{hint}")


def _knows(fields: dict[str, Any], name: str) -> bool:
    """Fields, not the methods a config has, nor what it works out itself."""
    if name in {"model_type", "attn_implementation"}:
        return True
    kind = CONFIG_MAPPING[fields["model_type"]]
    own = getattr(kind, name, None)
    if name.startswith("_") or callable(own) or (isinstance(own, property) and own.fset is None):
        return False
    return hasattr(kind(), name)


def parameters(model: PreTrainedModel) -> int:
    """P: every number that is trained, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)

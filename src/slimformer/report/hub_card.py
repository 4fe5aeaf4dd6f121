"""The model card of a folder, for the place it goes to on the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from slimformer.errors import CannotPush
from slimformer.evaluate.report import Report
from slimformer.files.reading import read_text
from slimformer.report.card import card_header

LOADED = re.compile(r'((?:from_pretrained|slimformer\.load)\()"(?:[^"\\]|\\.)*"')
HEADED = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


def card_for_hub(folder: Path, report: Report, repository: str, *, base_model: str | None = None) -> str:
    """The card in `folder` as it is, with two changes: its lines load from `repository`, and its header says what the
    model was made from, its tags and its metrics. What somebody has written or set there stays."""
    try:
        text = read_text(folder / "README.md")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotPush(f"{folder / 'README.md'} cannot be read, and the card belongs to the model") from error
    match = HEADED.match(text)
    header = _parsed(match[1], folder) if match else {}
    for key, value in card_header(report).items():
        header.setdefault(key, value)
    header["tags"] = list(dict.fromkeys([*_listed(header["tags"]), *card_header(report)["tags"]]))
    if base_model is not None:
        header["base_model"] = base_model
    body = LOADED.sub(lambda line: line[1] + json.dumps(repository), text[match.end() :] if match else text)
    return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True).strip()}\n---\n{body}"


def _parsed(text: str, folder: Path) -> dict[str, Any]:
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise CannotPush(f"{folder / 'README.md'}: its header is not YAML; correct it") from error
    if not isinstance(fields, dict):
        raise CannotPush(f"{folder / 'README.md'}: its header is no table of fields; correct it")
    return fields


def _listed(tags: Any) -> list[Any]:
    return list(tags) if isinstance(tags, list) else [tags] if tags else []

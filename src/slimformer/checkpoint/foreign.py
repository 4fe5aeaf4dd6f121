"""Code of others stays behind: no file that is written makes a loader run it.

A folder may name code in its configs (`auto_map`, `custom_pipelines`, a kernel of the hub as `attn_implementation`),
have its loader trust it (`trust_remote_code`), or hold it as files. What was opened may bring all of these along, in
the config of a model and in what its tokenizer saves. Only `modeling_slimformer.py` is ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slimformer.errors import FileRefused
from slimformer.files.reading import read_json
from slimformer.nn import ragged

FIELDS = (
    "auto_map",
    "custom_pipelines",
    "trust_remote_code",
    "attn_implementation",
    "_attn_implementation",
    "custom_generate",
)
OURS = f"{ragged.CODE.removesuffix('.py')}."


def strip_foreign_code(folder: Path) -> None:
    """Take references to code of others out of every config below `folder`, and the code itself.

    Other JSON files are left alone: to a vocabulary, `auto_map` is a word.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".py" and path.is_file():
            path.unlink()
        elif path.suffix == ".json" and "config" in path.name and path.is_file():
            _strip(path)


def _strip(path: Path) -> None:
    try:
        config = read_json(path)
        clean = _without(config)
    except (FileRefused, ValueError, RecursionError):  # copied from a stranger, and of no use to any loader
        path.unlink()
        return
    if clean != config:
        path.write_text(json.dumps(clean, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _without(value: Any) -> Any:
    if isinstance(value, list):
        return [_without(each) for each in value]
    if not isinstance(value, dict):
        return value
    clean = {name: _without(each) for name, each in value.items() if name not in FIELDS or _is_label(each)}
    own = value.get("auto_map")
    if isinstance(own, dict) and own and all(str(code).startswith(OURS) for code in own.values()):
        clean["auto_map"] = own
    return clean


def _is_label(value: Any) -> bool:
    """Names of classes are a stranger's, too, and have numbers."""
    return isinstance(value, int) and not isinstance(value, bool)

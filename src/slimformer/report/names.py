"""What models and data are called in what others may read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def is_hub_id(model: str) -> bool:
    """owner/name. Folders are told apart where a model is opened, not here: a page may be made anew anywhere."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) is not None


def last_name(name: str) -> str:
    """A folder goes by its last name: its place on this machine is private. Hub ids and names without places stay.

    What is on the disk is not looked at, so that the same report says the same wherever it is read.
    """
    placed = re.match(r"[./~\\]|[A-Za-z]:[/\\]", name) or (name.count("/") > 1)
    if not placed:
        return name
    parts = [part for part in re.split(r"[/\\]+", name) if part and part not in (".", "..", "~")]
    return parts[-1] if parts else "a local folder"


def source_names(names: str) -> str:
    """Files by their last names, several between commas. Data have no hub ids: owner/name is a file in a folder."""
    return ", ".join(last_name(f"./{name.strip()}") for name in names.split(",") if name.strip())


def measured_line(data: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """On which text the numbers of a table were measured, how much of it there was, and what it was taken for."""
    name = source_names(str(data.get("name", "")))
    if not name:
        return ""
    if not metrics:
        return f"calibrated on {name}; not measured"
    n, unit = metrics[0].get("documents"), data.get("document", "document")
    texts = f" of {n:,} {unit}{'' if n == 1 else 's'}" if n else ""
    tokens = (data.get("tokens") or {}).get("report")
    held_out = "held-out " if data.get("held_out", True) else ""
    amount = f": {tokens:,} {held_out}{data.get('unit', 'tokens')}{texts}" if tokens else ""
    return " · ".join([f"measured on {name}{amount}", *data.get("read_as", ())])

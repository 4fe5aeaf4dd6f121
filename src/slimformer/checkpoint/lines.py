"""JSON as it is written to files: to be read by people and compared line by line."""

from __future__ import annotations

import json
import math
import re
from typing import Any


def json_text(value: Any) -> str:
    """A line for each entry, but one line for a list of numbers, which may be long. No NaN, no infinity."""
    text = json.dumps(value, indent=1, allow_nan=False)
    # a line break never stands inside a JSON string, so what is matched is a list
    return re.sub(r"\[\n[-+.\deEnul,\s]*\]", lambda match: " ".join(match[0].split()), text)


def strict(value: Any) -> Any:
    """The same without NaN and infinity, anywhere inside."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""JSON as it is written to files: to be read by people and compared line by line."""

from __future__ import annotations

import json
import re
from typing import Any


def json_text(value: Any) -> str:
    """A line for each entry, but one line for a list of numbers, which may be long. No NaN, no infinity."""
    text = json.dumps(value, indent=1, allow_nan=False)
    # a line break never stands inside a JSON string, so what is matched is a list
    return re.sub(r"\[\n[-+.\deEnul,\s]*\]", lambda found: " ".join(found[0].split()), text)

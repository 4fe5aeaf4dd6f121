"""Notes on the data of a result, where they are too few or were not chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slimformer.calibrate.gather import Data
from slimformer.messages.words import option
from slimformer.models import Architecture

TOKENS_PER_COORDINATE = 10  # below it the least-squares refit follows the noise of the sample
FEWEST = {"example": 100, "image": 100, "recording": 100, "document": 10}  # of which a metric should be a mean


def thin_data(architecture: Architecture, data: Data) -> list[str]:
    """A note when there were fewer than `TOKENS_PER_COORDINATE` tokens for every coordinate of the widest site."""
    tokens = data.tokens["fit"] * (data.seq_len if architecture.family.unit in ("images", "pairs") else 1)
    widest = max(architecture, key=lambda site: site.width)
    wanted = TOKENS_PER_COORDINATE * widest.width
    if tokens >= wanted:
        return []
    return [
        f"fitted on {tokens:,} tokens, which is few for the {widest.width:,} coordinates of {widest.name}; "
        f"give {wanted:,} or more with {option('tokens')}"
    ]


def unnamed_data(reading: Mapping[str, Any], name: str) -> list[str]:
    """A note when no data were named."""
    if reading.get("named", True):
        return []
    return [
        f"no data were named, so the model was fitted and measured on {name}; what it will read protects it better: "
        f"name it with {option('data')}"
    ]


def few_examples(metrics: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """A note when metrics rest on so few independent texts that their intervals are wide, if there are any."""
    n, least = min((each["documents"] or 0 for each in metrics), default=0), FEWEST[unit]
    if not metrics or n >= least:
        return []
    texts, doubt = f"{n:,} {unit}{'' if n == 1 else 's'}", "intervals are wide" if n > 1 else "there is no interval"
    return [f"measured on {texts}, which is few: {doubt}; give data that leave {least} or more for the report"]

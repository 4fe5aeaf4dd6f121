"""The data that a result or statistics were made from, read again: what was held out then is held out now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from slimformer.calibrate.documents import weighted
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.errors import DataNotFound, SlimformerError
from slimformer.messages.words import option
from slimformer.models import describe


def read_again(
    known: Mapping[str, Any], model: PreTrainedModel, processor: Any, *, owner: str, seq_len: int | None = None,
    tokens: int | None = None,
) -> Data:  # fmt: skip
    """What a report or statistics (`known`, of the folder `owner`) say of their data, read as it was read then.

    Refused in one line where nothing is said, where data were in memory, are gone, or are not what they were.
    """
    reading = known.get("reading")
    reading = reading if isinstance(reading, Mapping) else {}
    name, other = str(known.get("name", "")), f"name data to measure on with {option('data')}"
    sources = reading.get("sources")
    if not name or not known.get("hash"):
        raise DataNotFound(f"{owner} does not say what it was calibrated on; {other}")
    if not isinstance(sources, list) or not sources:
        raise DataNotFound(f"{owner} was calibrated on {name}, and does not say where that is; {other}")
    if gone := [
        place for place in map(weighted, map(str, sources)) if Path(place).is_absolute() and not Path(place).exists()
    ]:
        raise DataNotFound(f"{owner} was calibrated on {name}, and {gone[0]} is not there any longer; {other}")
    options: dict[str, Any] = {part: reading.get(part) for part in ("samples", "columns")}
    try:
        as_then = Reading(
            seq_len=seq_len or reading.get("seq_len"), tokens=tokens or reading.get("tokens"), seed=int(known["seed"]),
            purpose=reading.get("purpose", "calibration"), broad=bool(reading.get("broad")), **options,
        )  # fmt: skip
        data = gather(",".join(map(str, sources)), model, processor, describe(model), as_then)
    except (SlimformerError, TypeError, ValueError, KeyError) as error:
        raise DataNotFound(f"{owner} was calibrated on {name}, which cannot be read now: {error}; {other}") from error
    if data.hash != known["hash"]:
        raise DataNotFound(f"{owner} was calibrated on {name}, which has changed since; {other}")
    return data

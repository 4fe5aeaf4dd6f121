"""Where statistics come from: `stats.json`, the first file of their folder. Reading it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from slimformer.errors import PlanDoesNotFit
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import checked, one_of, read_own_json

FORMAT = 2
MOST_BLOCKS, LONGEST = 10_000, 100_000_000  # of any model there will be for a while

Count = Annotated[int, Field(ge=1, le=10**15)]
Precision = Annotated[str, one_of("float64", "float32", "bfloat16", "float16")]


@dataclass(frozen=True)
class Reading:
    """How data were read, so that they can be read again."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    sources: list[str] | None = None  # where they are; None for data that were in memory
    named: bool = True  # did anybody name them?
    seq_len: Annotated[int, Field(ge=1, le=LONGEST)] | None = None
    broad: bool = False  # was broad text fitted beside them?
    tokens: Count | None = None
    samples: Count | None = None
    columns: list[str] | None = None
    purpose: Annotated[str, one_of("calibration", "evaluation")] = "calibration"


@dataclass(frozen=True)
class Provenance:
    """Where statistics come from: enough to refuse the wrong model and to repeat the run."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1)]
    fingerprint: Annotated[str, Field(min_length=1)]
    model_type: Annotated[str, Field(min_length=1)]
    data: str
    data_hash: str
    seed: Annotated[int, Field(ge=0)]
    seq_len: Annotated[int, Field(ge=1, le=LONGEST)]
    tokens: dict[str, Count]
    dtype: Precision
    n_blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS)]
    versions: dict[str, str]
    reading: dict[str, Any] = field(default_factory=dict)  # how the same data are read again
    joint: bool = False  # are there moments of neurons together with their input?
    slimformer_stats: int = FORMAT


def read_provenance(folder: str | Path) -> Provenance:
    """What statistics in a folder say of themselves; refused where there are none."""
    folder = Path(folder)
    require_unchanged(folder, "stats.json")
    try:
        data: Any = read_own_json(folder / "stats.json")
    except FileNotFoundError:
        raise PlanDoesNotFit(f"{str(folder)!r} holds no statistics; make them with `slimformer calibrate`") from None
    except (OSError, ValueError) as error:
        raise PlanDoesNotFit(
            f"{str(folder)!r} holds no statistics ({error}); make them with `slimformer calibrate`"
        ) from error
    return _checked(folder, data)


def _require_reading(provenance: Provenance) -> None:
    try:
        checked(Reading, provenance.reading)
    except ValueError as error:
        raise ValueError(f"reading.{error}") from None


def _checked(folder: Path, data: Any) -> Provenance:
    version = data.get("slimformer_stats") if isinstance(data, dict) else None
    if version != FORMAT:
        raise PlanDoesNotFit(
            f"{str(folder)!r} has statistics of format {version!r}, this version reads {FORMAT}; "
            "make them with `slimformer calibrate`"
        )
    try:
        version = checked(Provenance, data)
        _require_reading(version)
        return version
    except ValueError as error:
        raise PlanDoesNotFit(f"{folder / 'stats.json'}: {error}; make it with `slimformer calibrate`") from None

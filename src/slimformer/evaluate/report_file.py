"""What a page takes for granted of a `report.json`, checked before it is made: files are written by hand, too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slimformer.errors import ReportNotFound
from slimformer.evaluate.bench import Bench
from slimformer.evaluate.report import FORMAT, Count, Report
from slimformer.evaluate.task import TaskReport
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import checked as validated
from slimformer.files.reading import read_own_json


@dataclass(frozen=True)
class Metric:
    """One row of the table of metrics."""

    name: str
    better: str
    small: float | None
    dense: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Other:
    """Metrics on other data."""

    name: str
    metrics: list[Metric]


@dataclass(frozen=True)
class Worst:
    """The other text on which most is lost."""

    name: str
    loss: float


@dataclass(frozen=True)
class Elsewhere:
    """The loss on text like the calibration text, and on other text."""

    metric: str
    home: float
    elsewhere: float
    sources: int
    worst: Worst


@dataclass(frozen=True)
class SiteRow:
    """What one site keeps."""

    site: str
    block: Count
    kind: str
    keep: Count
    of: Count
    groups: Count
    of_groups: Count


@dataclass(frozen=True)
class ShownTask(TaskReport):
    """A task with scores that can be shown."""

    metrics: list[Metric]  # type: ignore[assignment]


@dataclass(frozen=True, repr=False)
class ShownReport(Report):
    """A report in which everything the page reads has its type."""

    metrics: list[Metric] = field(default_factory=list)  # type: ignore[assignment]
    other_data: list[Other] = field(default_factory=list)  # type: ignore[assignment]
    elsewhere: Elsewhere | None = None  # type: ignore[assignment]
    sites: list[SiteRow] = field(default_factory=list)  # type: ignore[assignment]
    tasks: dict[str, ShownTask] = field(default_factory=dict)
    bench: Bench | None = None  # type: ignore[assignment]


def checked(found: Any) -> dict[str, Any]:
    """The same with the defaults of what is left out; refused with the first fact that is wrong."""
    if not isinstance(found, Mapping) or found.get("slimformer_report") != FORMAT:
        raise ReportNotFound(f"is not a report of format {FORMAT}")
    try:
        said = validated(ShownReport, dict(found))
        _require_agreement(said)
    except ValueError as error:
        raise ReportNotFound(f"is not a whole report: {error}") from None
    known = {name: found[name] for name in Report.__dataclass_fields__ if name in found}
    defaults = asdict(Report(**known))
    return {"slimformer_report": FORMAT, **defaults, **found}


def _require_agreement(said: ShownReport) -> None:
    """What follows from other fields must be what follows from them."""
    if said.dense.block_macs:
        kept = said.small.block_macs / said.dense.block_macs
        if not math.isclose(kept, said.macs_kept, rel_tol=1e-9):
            raise ValueError(f"macs_kept is said to be {said.macs_kept:g}, and its MACs make it {kept:g}")
    for row in said.sites:
        if row.keep > row.of or row.groups > row.of_groups:
            raise ValueError(f"sites: {row.site[:80]} keeps {row.keep} of {row.of}")


def read_report(place: Path) -> dict[str, Any]:
    """The report in a folder, or in a file, with everything a page needs in it."""
    path = place / "report.json" if place.is_dir() else place
    require_unchanged(path.parent, path.name)
    try:
        found = read_own_json(path)
    except OSError as error:
        raise ReportNotFound(f"{path} cannot be read: {error.strerror}; give a folder `compress` wrote") from None
    except ValueError as error:
        raise ReportNotFound(f"{path} is not JSON as we write it: {error}; give a folder `compress` wrote") from None
    if isinstance(found, dict) and "slimformer_cascade_report" in found:
        raise ReportNotFound(f"{path} is the report of a cascade, of which no page is made; read it as JSON")
    try:
        return checked(found)
    except ReportNotFound as error:
        raise ReportNotFound(f"{path} {error}; give a folder `compress` wrote") from None

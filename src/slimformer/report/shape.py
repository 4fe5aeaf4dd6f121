"""What a page takes for granted of a `report.json`, checked before it is made: files are written by hand, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from slimformer.errors import ReportNotFound
from slimformer.evaluate.bench import Bench
from slimformer.evaluate.task import TaskReport
from slimformer.report.report import FORMAT, Report


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
class SiteRow:
    """What one site keeps."""

    site: str
    block: int
    kind: str
    keep: int
    of: int
    groups: int
    of_groups: int


@dataclass(frozen=True)
class ShownTask(TaskReport):
    """A task with scores that can be shown."""

    metrics: list[Metric]  # type: ignore[assignment]


@dataclass(frozen=True, repr=False)
class ShownReport(Report):
    """A report in which everything the page reads has its type."""

    metrics: list[Metric] = field(default_factory=list)  # type: ignore[assignment]
    other_data: list[Other] = field(default_factory=list)  # type: ignore[assignment]
    sites: list[SiteRow] = field(default_factory=list)  # type: ignore[assignment]
    tasks: dict[str, ShownTask] = field(default_factory=dict)
    bench: Bench | None = None  # type: ignore[assignment]


SHAPE = TypeAdapter(ShownReport)


def checked(found: Any) -> dict[str, Any]:
    """The same with the defaults of what is left out; refused with the first fact that is wrong."""
    if not isinstance(found, Mapping) or found.get("slimformer_report") != FORMAT:
        raise ReportNotFound(f"is not a report of format {FORMAT}")
    try:
        SHAPE.validate_python(dict(found))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ReportNotFound(f"is not a whole report: {place}: {first['msg'].lower()}") from None
    known = {name: found[name] for name in Report.__dataclass_fields__ if name in found}
    defaults = asdict(Report(**known))
    return {"slimformer_report": FORMAT, **defaults, **found}

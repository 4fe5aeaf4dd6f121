"""What a page takes for granted of a `report.json`, checked before it is made: files are written by hand, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slimformer.errors import ReportNotFound
from slimformer.evaluate.elsewhere import home_and_elsewhere
from slimformer.evaluate.report import FORMAT, Report
from slimformer.evaluate.report_fields import ShownReport, require_agreement
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import checked as validated
from slimformer.files.reading import read_own_json


def checked(content: Any) -> dict[str, Any]:
    """The same with the defaults of what is left out, and with what follows from the rest computed anew; refused with
    the first fact that is wrong."""
    if not isinstance(content, Mapping) or content.get("slimformer_report") != FORMAT:
        raise ReportNotFound(f"is not a report of format {FORMAT}")
    try:
        report = validated(ShownReport, dict(content))
        require_agreement(report)
    except ValueError as error:
        raise ReportNotFound(f"is not a whole report: {error}") from None
    known = {name: content[name] for name in Report.__dataclass_fields__ if name in content}
    defaults = asdict(Report(**known))
    whole = {"slimformer_report": FORMAT, **defaults, **content}
    return {**whole, "elsewhere": home_and_elsewhere(whole["metrics"], whole["other_data"])}


def read_report(place: Path) -> dict[str, Any]:
    """The report in a folder, or in a file, with everything a page needs in it."""
    path = place / "report.json" if place.is_dir() else place
    require_unchanged(path.parent, path.name)
    try:
        content = read_own_json(path)
    except OSError as error:
        raise ReportNotFound(f"{path} cannot be read: {error.strerror}; give a folder `compress` wrote") from None
    except ValueError as error:
        raise ReportNotFound(f"{path} is not JSON as we write it: {error}; give a folder `compress` wrote") from None
    if isinstance(content, dict) and "slimformer_cascade_report" in content:
        raise ReportNotFound(f"{path} is the report of a cascade, of which no page is made; read it as JSON")
    try:
        return checked(content)
    except ReportNotFound as error:
        raise ReportNotFound(f"{path} {error}; give a folder `compress` wrote") from None

"""The report as a model card: what was done, what it cost, how to load it."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment

from slimformer.report.heads import fresh_head_line
from slimformer.report.report import Report


def model_card(report: Report, *, folder: str) -> str:
    """README.md for a checkpoint: YAML header for the hub, then text. Numbers come from the report only."""
    template = (resources.files("slimformer.report") / "card.md.jinja").read_text()
    environment = Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    header = yaml.safe_dump(_header(report), sort_keys=False, allow_unicode=True).strip()
    values: dict[str, Any] = {
        "report": report,
        "header": header,
        "title": last_name(report.model),
        "folder": json.dumps(folder, ensure_ascii=False),  # it stands in Python code
        "fresh_head": fresh_head_line(report.head) if report.head else "",
        "data": ", ".join(map(last_name, report.data.get("name", "the data").split(","))),
    }
    return environment.from_string(template).render(load_class=report.load_class, **values)


def _header(report: Report) -> dict[str, Any]:
    header: dict[str, Any] = {"library_name": "transformers", "tags": ["slimformer", "compressed", "pruned"]}
    if _is_hub_id(report.model):
        header["base_model"] = report.model
    return header


def _is_hub_id(model: str) -> bool:
    """owner/name, unless there is a folder of that name."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) is not None and not Path(model).exists()


def last_name(name: str) -> str:
    """A file or folder goes by its last name: where it lay is nobody's business."""
    return (
        name if _is_hub_id(name) or not (Path(name).exists() or Path(name).is_absolute()) else Path(name).resolve().name
    )

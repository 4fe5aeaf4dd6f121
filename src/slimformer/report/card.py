"""The report as a model card: what was done, what it cost, how to load it."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml
from jinja2 import Environment

from slimformer.report.report import Report


def model_card(report: Report, *, folder: str) -> str:
    """README.md for a checkpoint: YAML header for the hub, then text. Numbers come from the report only."""
    template = (resources.files("slimformer.report") / "card.md.jinja").read_text()
    environment = Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True)
    header = yaml.safe_dump(_header(report), sort_keys=False).strip()
    values: dict[str, Any] = {"report": report, "header": header, "load_class": report.load_class, "folder": folder}
    return environment.from_string(template).render(**values)


def _header(report: Report) -> dict[str, Any]:
    header: dict[str, Any] = {"library_name": "transformers", "tags": ["slimformer", "compressed", "pruned"]}
    if "/" in report.model and not report.model.startswith((".", "/", "~")) and report.model.count("/") == 1:
        header["base_model"] = report.model
    return header

"""The report as a page: one HTML file that needs no network, made from what `report.json` holds and nothing else.

Everything is drawn by the scripts in `web/`, which are put into the file. The report travels in it as JSON in which no
character can end the element it stands in; the scripts make text nodes of it, never markup; and a content security
policy lets only these very scripts and styles run, so that nothing a model or a text is called can.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from slimformer.evaluate.verdict import verdict
from slimformer.files.reading import read_text, require_regular
from slimformer.report.names import last_name, source_names

SCRIPTS = ("draw.js", "plan.js", "page.js", "elsewhere.js", "spectra.js", "detail.js")  # the last one starts
MODELS = ("dense", "small")  # of a task or a bench
MARK = '<meta name="generator" content="slimformer'
SEAL = re.compile(f'{MARK} ([0-9a-f]{{64}})">')
UNSEALED = "0" * 64


def html_page(report: Mapping[str, Any], *, folder: str = "smaller") -> str:
    """The page of a report. `folder` is what the lines that load the model call it. Cost: milliseconds."""
    shown = without_places(report)
    style = _web("page.css")
    script = "\n".join(['"use strict";', *map(_web, SCRIPTS)])
    title = f"{shown['model']} · slimformer"
    data = {"report": shown, "folder": folder, "verdict": asdict(verdict(report))}
    values = {
        "STYLE_HASH": _hash(style), "SCRIPT_HASH": _hash(script), "TITLE": html.escape(title),
        "STYLE": style, "DATA": json_in_html(data), "SCRIPT": script,
        "SEAL": UNSEALED,
    }  # fmt: skip
    first, *rest = _web("page.html").split("@")  # in turn, so that what was put in is not searched again
    parts = [values[part] if n % 2 == 0 else part for n, part in enumerate(rest)]
    page = "".join([first, *parts])
    return page.replace(UNSEALED, _checksum(page), 1)


def json_in_html(value: Any) -> str:
    """JSON that can stand inside any element: what HTML would read as its own is written as an escape."""
    text = json.dumps(value, allow_nan=False)  # all of ASCII, so no line separator of JavaScript is among it
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def is_page(path: Path) -> bool:
    """Is there a page of ours at this place, changed or not?"""
    try:
        require_regular(path)
        with path.open(encoding="utf-8") as file:
            return MARK in file.read(1000)
    except (OSError, UnicodeDecodeError):
        return False


def is_page_as_made(path: Path) -> bool:
    """Is there a page of ours that nobody has changed since, by the checksum it carries? Then it may be made anew."""
    if not is_page(path):
        return False
    try:
        page = read_text(path)
    except (OSError, ValueError):
        return False
    seal = SEAL.search(page, 0, 1000)
    return seal is not None and _checksum(page.replace(seal[1], UNSEALED, 1)) == seal[1]


def without_places(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says, and what is sent to a hub: without folders of this machine."""
    data, others = report.get("data") or {}, report.get("other_data") or []
    names = [str(report["model"]), *(str(each["name"]) for each in (data, *others) if each.get("name"))]
    return {
        **report, "model": last_name(str(report["model"])), "data": _placeless(data),
        "other_data": [_placeless(each) for each in others],
        "tasks": {name: _placeless(each) for name, each in (report.get("tasks") or {}).items()},
        "bench": _placeless(report["bench"]) if report.get("bench") else None,
        "warnings": [_without_paths(text, names) for text in report.get("warnings") or []],
    }  # fmt: skip


def _placeless(report: Mapping[str, Any]) -> dict[str, Any]:
    """Data, a task or a bench with models, files and what its notes call them by their last names."""
    models = {name: last_name(report[name]) for name in MODELS if isinstance(report.get(name), str)}
    data = {name: source_names(report[name]) for name in ("name", "data") if isinstance(report.get(name), str)}
    files = [str(file) for file in report.get("files") or ()]
    names = [*(str(report[name]) for name in (*models, *data)), *files]
    lists = {"files": [source_names(file) for file in files]} if "files" in report else {}
    if "notes" in report:
        lists["notes"] = [_without_paths(str(text), names) for text in report["notes"]]
    return {**{name: value for name, value in report.items() if name != "reading"}, **models, **data, **lists}


def _without_paths(text: str, names: Sequence[str]) -> str:
    """A note that speaks of files by their last names, too: those that are known, and whatever else is absolute."""
    places = {place.strip() for name in names for place in name.split(",")} - {""}
    for place in sorted(places, key=len, reverse=True):
        if re.search(r"[/\\]", place):
            text = text.replace(place, last_name(place))
    return re.sub(r"(?<![\w./<])~?/(?:[^\s/,;:]+/)+(?=[^\s/,;:])", "", text)


def _web(name: str) -> str:
    return (resources.files("slimformer.report") / "web" / name).read_text(encoding="utf-8")


def _checksum(page: str) -> str:
    return hashlib.sha256(page.encode()).hexdigest()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

"""The quickstart notebook runs from top to bottom in a kernel of its own, and is kept with what it shows."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import skip_or_fail

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
NUMBER = re.compile(r"[-+]?\d[\d,.]*(?:e[-+]?\d+)?")
CLOSE = 0.2  # of a number that other processors and versions may give otherwise


def kept() -> list[dict[str, Any]]:
    """The cells of code."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> str:
    """What a cell shows, as text."""
    texts = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell["outputs"]]
    return "".join("".join(text) for text in texts)


def test_every_cell_compiles_and_is_kept_with_what_it_shows():
    for number, cell in enumerate(kept(), start=1):
        compile("".join(cell["source"]), NOTEBOOK.name, "exec")
        assert cell["execution_count"] == number, "run from top to bottom: python benchmarks/notebook_outputs.py"
        assert shown(cell).strip() and not [out for out in cell["outputs"] if out["output_type"] == "error"]
        assert "/tmp" not in shown(cell) and "/home" not in shown(cell)


@pytest.mark.slow
def test_the_quickstart_shows_what_it_is_kept_with(tmp_path, monkeypatch):
    """The same words; numbers as near as other processors and versions of torch let them be."""
    if any(importlib.util.find_spec(name) is None for name in ("nbclient", "nbformat", "ipykernel")):
        skip_or_fail("nbclient and ipykernel are not installed")
    import nbformat

    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    found = importlib.import_module("notebook_outputs").executed(nbformat.read(NOTEBOOK, as_version=4), tmp_path)
    assert (tmp_path / "smaller" / "report.html").is_file()
    now = [cell for cell in found.cells if cell["cell_type"] == "code"]
    for cell, old in zip(now, kept(), strict=True):
        texts = [shown(each) for each in (cell, old)]
        words = [NUMBER.sub("#", text).split() for text in texts]
        assert words[0] == words[1]
        for one, other in zip(*(NUMBER.findall(text) for text in texts), strict=True):
            left, right = (float(number.replace(",", "").rstrip(".")) for number in (one, other))
            assert abs(left - right) <= CLOSE * max(abs(left), abs(right), 1), (one, other)

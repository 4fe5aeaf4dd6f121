"""Every benchmark can be imported: names it takes from the package are there."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.py")))
def test_it_imports(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    importlib.import_module(name)

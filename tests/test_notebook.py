"""The quickstart notebook runs from top to bottom in a kernel of its own, and is kept without outputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from conftest import skip_or_fail

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def test_a_notebook_is_kept_without_outputs_and_its_code_compiles():
    """Outputs would be figures nobody renews."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            compile("".join(cell["source"]), NOTEBOOK.name, "exec")


@pytest.mark.slow
def test_the_quickstart_runs(tmp_path):
    if any(importlib.util.find_spec(name) is None for name in ("nbclient", "nbformat", "ipykernel")):
        skip_or_fail("nbclient and ipykernel are not installed")
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert (tmp_path / "smaller" / "report.html").is_file()
    shown = [cell["outputs"] for cell in notebook.cells if cell["cell_type"] == "code"]
    assert all(shown), "every cell shows something"
    assert not [out for outputs in shown for out in outputs if out["output_type"] == "error"]

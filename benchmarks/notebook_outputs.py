"""Runs examples/quickstart.ipynb from top to bottom and keeps what it shows in it.

    python benchmarks/notebook_outputs.py

A kernel of its own, in a folder of its own. Only outputs change: what libraries write to standard error is left out,
and so are times, so that the file says what the cells say. About a minute on one core.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FILE = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def executed(notebook: nbformat.NotebookNode, folder: str | Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in `folder`; refused by nbclient where a cell fails."""
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, record_timing=False).execute()
    for cell in notebook.cells:
        if cell["cell_type"] == "code":
            cell["outputs"] = [out for out in cell["outputs"] if out.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Run it and write it back."""
    with tempfile.TemporaryDirectory() as scratch:
        notebook = executed(nbformat.read(FILE, as_version=4), scratch)
    notebook.metadata.pop("language_info", None)  # what differs from one Python to the next
    nbformat.write(notebook, FILE)


if __name__ == "__main__":
    main()

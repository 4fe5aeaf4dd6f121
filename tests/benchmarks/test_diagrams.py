"""The diagrams in the documents are those of the code."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_the_diagrams_are_as_the_configs_say(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import minimal_diagrams

    drawn = minimal_diagrams.drawing()
    assert drawn == minimal_diagrams.IMAGE.read_text(encoding="utf-8"), "run python benchmarks/minimal_diagrams.py"
    said = [element.text or "" for element in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert set(minimal_diagrams.FORMS) <= set(said)
    assert [said.count(weight) for weight in ("W_q", "W_qk", "T", "W_o")] == [2, 1, 2, 3]

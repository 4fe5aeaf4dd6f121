"""What healing wins back, by what learns, as a table."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

NAMES = {
    "none": "nothing: as cut", "both": "both phases", "lora": "low-rank changes", "norms": "norms and biases",
    "stat": "all, after a cut by STAT",
}  # fmt: skip


def heal(results: dict[str, Any], part: str | None) -> str:
    """All ways of one model, the cut model first."""
    if part is not None:
        raise NothingToRender(f"heal results have no part {part!r}")
    unit, amount = next(iter(results["budget"].items()))
    cut = next(row for row in results["rows"] if row["way"] == "none")
    texts = list(cut.get("scores", {}))
    measured = texts or ["excess nats at home", "of the excess gone"]
    head = ["learns", *measured, "change of divergence at home, 95 %", "elsewhere, 95 %"]
    rows = [[*_name_and_scores(row, cut, texts), *_changes(row)] for row in results["rows"]]
    title = f"{results['model']} at {results['macs']:.0%} of its block MACs, {amount:,} {unit}, {results['data']}:"
    return f"{title}\n\n{markdown(head, rows)}"


def _name_and_scores(row: dict[str, Any], cut: dict[str, Any], texts: list[str]) -> list[str]:
    name = NAMES.get(row["way"], f"{row['way']} phase")
    if texts:
        scores = (row["scores"][text] for text in texts)
        return [name, *(f"{each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}]" for each in scores)]
    nats = row["nats_home"]
    return [name, f"{nats:.3f}", "" if row is cut else f"{1 - nats / cut['nats_home']:.0%}"]


def _changes(row: dict[str, Any]) -> list[str]:
    if row["way"] == "none":
        return ["", ""]
    gains = (row["healing"]["won"][text] for text in ("home", "elsewhere"))
    return [f"{gain['change']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]" for gain in gains]

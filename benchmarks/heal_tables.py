"""What healing wins back, by what learns, as a table."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

HEAD = ["learns", "excess nats at home", "of the excess gone", "change of KL at home, 95 %", "elsewhere, 95 %"]
NAMES = {"none": "nothing: as cut", "both": "both phases", "lora": "low-rank changes", "norms": "norms and biases"}


def heal(results: dict[str, Any], part: str | None) -> str:
    """All ways of one model, the cut model first."""
    if part is not None:
        raise NothingToRender(f"heal results have no part {part!r}")
    unit, amount = next(iter(results["budget"].items()))
    before = next(row["nats_home"] for row in results["rows"] if row["way"] == "none")
    rows = [_row(row, before) for row in results["rows"]]
    head = f"{results['model']} at {results['macs']:.0%} of its block MACs, {amount:,} {unit} seen, {results['data']}:"
    return f"{head}\n\n{markdown(HEAD, rows)}"


def _row(row: dict[str, Any], before: float) -> list[str]:
    name, nats = NAMES.get(row["way"], f"{row['way']} phase"), row["nats_home"]
    if row["way"] == "none":
        return [name, f"{nats:.3f}", "", "", ""]
    won = row["healing"]["won"]
    return [name, f"{nats:.3f}", f"{1 - nats / before:.0%}", *(_change(won[text]) for text in ("home", "elsewhere"))]


def _change(gain: dict[str, float]) -> str:
    return f"{gain['change']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"

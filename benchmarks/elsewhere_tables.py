"""Fitted source by measured source, as tables: one for each model and budget."""

from __future__ import annotations

from typing import Any

from tables import markdown

NAMES = {"stat": "STAT", "uniform": "`uniform`", "balanced": "`balanced`"}


def elsewhere(results: dict[str, Any], part: str | None) -> str:
    """One model (`smollm2`), or its rows of amounts (`minilm-breadth`)."""
    model, _, rows = (part or "").partition("-")
    cells = [cell for cell in results["cells"].values() if (cell["model"], cell["part"]) == (model, rows or "matrix")]
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["model"], cell["budget"]), []).append(cell)
    return "\n\n".join(_table(model, budget, rows) for (model, budget), rows in groups.items())


def _table(model: str, budget: float, rows: list[dict[str, Any]]) -> str:
    texts = list(rows[0]["scores"])
    nats = "excess" in rows[0]["scores"][texts[0]]
    what = "excess nats per token over the dense model" if nats else "scores"
    lines = [
        [f"{row['fit']}, {NAMES[row['recipe']]}", f"{row['tokens']['fit']:,}",
         *(_cell(row["scores"][text], nats) for text in texts)]
        for row in rows
    ]  # fmt: skip
    header = ["fitted on, recipe", "tokens", *texts]
    return f"{model} at {budget:.0%} of its block MACs, {what} [95 % interval]:\n\n{markdown(header, lines)}"


def _cell(score: dict[str, Any], nats: bool) -> str:
    value = score["excess"] if nats else score["value"]
    return f"{value:.3f} [{score['low']:.3f}, {score['high']:.3f}]"

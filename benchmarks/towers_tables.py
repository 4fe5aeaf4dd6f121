"""Matches of two towers before and after a cut, as a table."""

from __future__ import annotations

from typing import Any

from tables import markdown


def towers(results: dict[str, Any], _report: str | None) -> str:
    """Points lost by recipe and budget."""
    budgets = sorted({cell["budget"] for cell in results["cells"]}, reverse=True)
    of = {(cell["recipe"], cell["budget"]): cell for cell in results["cells"]}
    recipes = list(dict.fromkeys(recipe for recipe, _ in of))
    rows = [[f"`{recipe}`", *(_points(of[recipe, budget]) for budget in budgets)] for recipe in recipes]
    target = results["target"]
    what = (
        f"A small CLIP, trained for {results['steps']:,} steps on drawn shapes: {100 * results['dense']:.1f} % matches "
        f"among 32 dense (chance {100 * results['chance']:.0f} %) over {results['pairs']['measured']:,} pairs; points "
        f"more or fewer after a cut [95 % interval], target at {100 * target['budget']:g} % no fewer than "
        f"−{target['points']:g}"
    )
    return f"{what}:\n\n{markdown(['recipe', *(f'{100 * budget:g} %' for budget in budgets)], rows)}"


def _points(cell: dict[str, Any]) -> str:
    low, value, high = (f"{100 * cell[key]:+.1f}".replace("-", "−") for key in ("low", "gap", "high"))
    return f"{value} [{low}, {high}]"

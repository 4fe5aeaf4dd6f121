"""From scores to statements: means with intervals, excess over the dense model, and who is better than whom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from cells import Cell
from slimformer.evaluate.intervals import mean_interval, paired_difference
from subjects import Score

OURS = "balanced"
LEVEL = 0.95
MARKS = {"better": "", "tie": "=", "worse": "!", "ours": ""}  # how ours does against the method in a cell

Statement = dict[str, Any]


def summary(dense: Cell, cells: Sequence[Cell]) -> Statement:
    """Everything a result file says about the numbers, as plain data."""
    ours = {cell.budget: cell for cell in cells if cell.method == OURS}
    rows = [cell_statement(cell, dense, ours.get(cell.budget)) for cell in cells]
    return {
        "ours": OURS,
        "level": LEVEL,
        "dense": {name: level_statement(name, score) for name, score in dense.scores.items()},
        "cells": rows,
        "holds": all(found["verdict"] != "worse" for row in rows for found in _claimed(row)),
    }


def holds(results: Statement) -> bool:
    """Is ours nowhere significantly worse than a baseline?"""
    return bool(results["holds"])


def cell_statement(cell: Cell, dense: Cell, ours: Cell | None) -> Statement:
    """One method at one budget: what was kept, and how it does on every report."""
    reports = {
        name: {
            **level_statement(name, score),
            **excess_statement(dense.scores[name], score),
            **verdict_statement(cell, score, ours.scores[name] if ours else None),
        }
        for name, score in cell.scores.items()
    }
    kept = {"macs": round(cell.macs, 5), "params": round(cell.params, 5), "sizes": cell.sizes}
    if cell.kv_cache is not None:
        kept["kv_cache"] = round(cell.kv_cache, 4)
    return {"method": cell.method, "budget": cell.budget, **kept, "seconds": cell.seconds, "reports": reports}


def level_statement(name: str, score: Score) -> Statement:
    """The mean with its interval; perplexity where the scores are nats per token, accuracy where they are errors."""
    mean = mean_interval(score.values, weights=score.weights, level=LEVEL)
    if name.endswith(" error"):
        return {"accuracy": 1 - mean.value, "low": 1 - mean.high, "high": 1 - mean.low}
    if name.endswith(" KL"):
        return {"kl": mean.value, "low": mean.low, "high": mean.high}
    return {"ppl": math.exp(mean.value), "low": math.exp(mean.low), "high": math.exp(mean.high)}


def excess_statement(dense: Score, score: Score) -> Statement:
    """How much worse than the dense model: ln(ppl / dense ppl) for a language model."""
    excess = paired_difference(dense.values, score.values, weights=score.weights, level=LEVEL)
    return {"excess": excess.value, "excess_low": excess.low, "excess_high": excess.high}


def verdict_statement(cell: Cell, score: Score, ours: Score | None) -> Statement:
    """(method − ours) with its paired interval; ours is better where all of it is above zero."""
    if cell.method == OURS or ours is None:
        return {"verdict": "ours" if cell.method == OURS else "tie"}
    gap = paired_difference(ours.values, score.values, weights=score.weights, level=LEVEL)
    verdict = "better" if gap.low > 0 else "worse" if gap.high < 0 else "tie"
    return {"gap": gap.value, "gap_low": gap.low, "gap_high": gap.high, "p": gap.p, "verdict": verdict}


def _claimed(row: Statement) -> Iterator[Statement]:
    """Reports the claim is about: those of baselines; others of ours are none."""
    if row["method"] not in (OURS, "uniform", "plain", "nested"):
        yield from row["reports"].values()


# --- tables -------------------------------------------------------------------------------------------------


def grid(results: Statement, report: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: a row for each method, a column for each budget."""
    budgets = sorted({row["budget"] for row in results["cells"]}, reverse=True)
    methods = list(dict.fromkeys(row["method"] for row in results["cells"]))
    found = {(row["method"], row["budget"]): row["reports"][report] for row in results["cells"]}
    rows = [[method, *(show(found[method, b]) if (method, b) in found else "–" for b in budgets)] for method in methods]
    return ["method", *(f"{100 * budget:g} %" for budget in budgets)], rows


def show(found: Statement) -> str:
    """A number as tables show it, with a mark where ours does not win: = tie, ! ours is worse."""
    return level_text(found) + MARKS[found["verdict"]]


def level_text(found: Statement) -> str:
    """Perplexity, accuracy in percent, or KL, with as many digits as mean something."""
    if "accuracy" in found:
        return f"{100 * found['accuracy']:.1f}"
    if "kl" in found:
        return f"{found['kl']:.2g}" if found["kl"] < 0.1 else f"{found['kl']:.2f}"
    ppl = found["ppl"]
    if ppl >= 1e4:
        return f"{ppl:.0e}"
    return f"{ppl:.2f}" if ppl < 10 else f"{ppl:.1f}" if ppl < 100 else f"{ppl:.0f}"


def metric_name(found: Statement) -> str:
    """What the numbers of a report are."""
    return "perplexity" if "ppl" in found else "accuracy, %" if "accuracy" in found else "KL to the dense model"


def console_tables(results: Statement) -> Iterator[Table]:
    """A table for each report, and a last one with excess nats for language models."""
    for report, dense in results["dense"].items():
        title = f"{report}: {metric_name(dense)}; dense {level_text(dense)}   (= tie with {OURS}, ! {OURS} worse)"
        header, rows = grid(results, report)
        table = Table(title=title, title_justify="left")
        for i, column in enumerate(header):
            table.add_column(column, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        yield table

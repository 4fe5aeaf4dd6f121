"""Reports of heads, maps and adapted models as tables for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slimformer.messages.words import option
from slimformer.report.names import source_names
from slimformer.report.tables import number_table


def show_probe(report: dict[str, Any], folder: Path | None, out: Console) -> None:
    """What was tried, what it scores, and where it is."""
    title = f"{report['kind']} on {report['rows']:,} rows of {source_names(report['data'])}: leave-one-out"
    tried = number_table(title, "features", "loss", "error", "shrinkage")
    for row in report["tried"]:
        best = {"pool": row["pool"], "layer": row["layer"]} == report["reading"]
        values = ["" if row[name] is None else f"{row[name]:.4g}" for name in ("loss", "error", "shrinkage")]
        tried.add_row(f"{row['pool']} of layer {row['layer']}", *values, style="bold" if best else None)
    out.print(tried)
    if scores := report.get("scores"):
        out.print(scores_table(scores))
    if matrix := (scores or {}).get("confusion"):
        out.print(confusion_table(matrix))
    for note in report.get("warnings", ()):
        out.print(f"note: {note}", style="yellow")
    if folder is not None:
        out.print(f"\nsaved in {folder} as a {report['saved']}")
        if report["saved"] == "SentenceTransformer":
            usual = "last" if report["causal"] else "cls"
            out.print(
                f"no stock classifier takes the mean of positions; {option('pool', usual)} gives one for transformers"
            )


def fresh_head_line(head: dict[str, Any]) -> str:
    """What a cut model's fresh head was fitted on, and what its old one did on the same rows."""
    line = f"fresh head: {head['kind']} in closed form, on {head['rows']:,} rows"
    old = [f"{metric['name']} {metric['small']:.4g}" for metric in head.get("old_head", ())]
    return f"{line}; with the old head: {', '.join(old)}" if old else line


def scores_table(scores: dict[str, Any]) -> Table:
    """Scores with their intervals."""
    title = f"measured on {source_names(scores['data'])}: {scores['examples']:,} examples"
    table = number_table(title, "score", "value", "95 % interval")
    for name, value in scores.items():
        if isinstance(value, dict) and "value" in value:
            interval = f"{value['low']:.4f} … {value['high']:.4f}" if "low" in value else ""
            table.add_row(name.replace("_", " "), f"{value['value']:.4f}", interval)
        elif isinstance(value, float):
            table.add_row(name.replace("_", " "), f"{value:.4f}", "")
    return table


def confusion_table(matrix: dict[str, Any]) -> Table:
    """True labels down, predicted ones across; left out where there are too many to read."""
    labels = matrix["labels"][:20]
    table = number_table("confusion", "true \\ said", *labels)
    for name, row in zip(labels, matrix["counts"], strict=False):
        table.add_row(name, *(str(n) for n in row[: len(labels)]))
    return table


def show_match(report: dict[str, Any], folder: Path | None, out: Console) -> None:
    """One line for each method and direction."""
    name = source_names(report["data"]) or " and ".join(source_names(report[side]) for side in ("source", "target"))
    pairs = f"{report['held_out']:,} held-out pairs, fitted on {report['pairs']:,}"
    columns = ("method", "way", "R@1", "95 %", "R@5", "R@10", "median rank", "R@1 without hubs")
    table = number_table(f"measured on {name}: {pairs}; chance {report['chance']['R@1']:.4f}", *columns)
    for row in report["methods"]:
        for way in ("forward", "backward"):
            recalls = row["cosine"][way]
            table.add_row(
                row["method"], way, f"{recalls['R@1']:.3f}", f"{recalls['low']:.3f} … {recalls['high']:.3f}",
                f"{recalls['R@5']:.3f}", f"{recalls['R@10']:.3f}", f"{recalls['median_rank']:g}",
                f"{row['csls'][way]['R@1']:.3f}", style="bold" if row["method"] == report["best"] else None,
            )  # fmt: skip
    out.print(table)
    if folder is not None:
        out.print(f"\nthe map of {report['best']} is in {folder}")


def show_adapted(report: dict[str, Any], folder: Path | None, out: Console) -> None:
    """Perplexity before and after on every text, by its name."""
    fitted = f"{report['tokens']:,} tokens of {source_names(report['data'])}"
    columns = ("held-out text", "tokens", "documents", "before", "after", "nats per token", "95 % interval")
    table = number_table(f"{report['method']} on {fitted}: {report['chosen']}", *columns)
    names = {"domain": source_names(report["data"]), "source": source_names(report["source_data"])}
    for name, change in report["perplexity"].items():
        interval = f"{change['low']:+.3f} … {change['high']:+.3f}" if "low" in change else ""
        amount = (f"{change['tokens']:,}", f"{change['documents']:,}")
        values = (f"{change['before']:.2f}", f"{change['after']:.2f}", f"{change['nats']:+.3f}")
        table.add_row(Text(names.get(name, name)), *amount, *values, interval)
    out.print(table)
    for note in report["warnings"]:
        out.print(Text(f"note: {note}", style="yellow"))
    if folder is not None:
        out.print(f"\nsaved in {folder}")

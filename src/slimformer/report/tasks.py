"""Task scores and serving figures as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

NONE = "–"


def task_table(found: dict[str, Any]) -> RenderableType:
    """One line for each score, below the data: both models, their difference with its interval and test, recovery."""
    table = Table(title=Text(f"{found['task']} · {found['small']} against {found['dense']}"), title_justify="left")
    table.add_column("")
    for column in ("dense", "small", "difference (95 %)", "p", "recovery"):
        table.add_column(column, justify="right")
    for metric in found["metrics"]:
        table.add_row(
            f"{metric['name']} ({'↓' if metric['better'] == 'lower' else '↑'})",
            *(_within(metric[name], metric[f"{name}_low"], metric[f"{name}_high"], ".2f") for name in SIDES),
            _within(metric["difference"], metric["low"], metric["high"], "+.2f"),
            _number(metric["p"], ".3f"),
            _within(metric["recovery"], metric["recovery_low"], metric["recovery_high"], ".1f", " %"),
        )
    settings = " · ".join(f"{name} {_plain(value)}" for name, value in found["settings"].items())
    above = Text(f"measured on {found['examples']:,} {found['unit']} of {_scored(found)}")
    return Group(above, table, *(Text(line, style="dim") for line in (settings, *found["notes"])))


SIDES = ("dense", "small")
LOADS = ("dense rate", "small rate", "dense peak", "small peak")


def bench_table(found: dict[str, Any]) -> RenderableType:
    """Latencies, then rates and peaks, one line for each phase and batch size; weights and cache below."""
    times = Table(title=Text(f"{found['small']} against {found['dense']}"), title_justify="left")
    loads = Table()
    for table, columns in ((times, ("dense", "small", "small / dense", "quartiles")), (loads, LOADS)):
        table.add_column("")
        for column in ("batch", *columns):
            table.add_column(column, justify="right")
    for row in found["measurements"]:
        what = row["phase"], str(row["batch"])
        seconds = (f"{1e3 * row[f'{name}_seconds']:.1f} ms" for name in SIDES)
        times.add_row(*what, *seconds, f"{row['ratio']:.3f}", f"{row['ratio_low']:.3f} … {row['ratio_high']:.3f}")
        rates = (f"{row[f'{name}_rate']:,.0f}/s" for name in SIDES)
        loads.add_row(*what, *rates, *(f"{row[f'{name}_peak_bytes'] / 1e6:.1f} MB" for name in SIDES))
    sizes = [("weights", "weights_bytes"), ("KV cache of one sequence", "kv_cache_bytes")]
    lines = [f"{name}: {_sizes(found[key])}" for name, key in sizes if found[key]["dense"]]
    plural = "" if found["threads"] == 1 else "s"
    lines.append(
        f"T = {found['seq_len']} · medians of {found['repeats']} interleaved rounds · {found['threads']} "
        f"thread{plural} on {found['device']} · ratios with quartiles · rates in {found['unit']} · peak: tensors "
        "besides the weights"
    )
    return Group(times, loads, *(Text(line, style="dim") for line in lines))


def _sizes(pair: dict[str, int]) -> str:
    return f"{pair['dense'] / 1e6:.2f} MB → {pair['small'] / 1e6:.2f} MB ({pair['small'] / pair['dense']:.3f})"


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _within(value: float | None, low: float | None, high: float | None, form: str, unit: str = "") -> str:
    """A number with its interval; a dash where there is none."""
    return f"{_number(value, form)}{unit} [{_number(low, form)}, {_number(high, form)}]" if value is not None else NONE


def _scored(found: dict[str, Any]) -> str:
    """Where the rows came from: the files by name, as a folder may hold several parts."""
    return ", ".join(found["files"]) or str(found["data"])


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)

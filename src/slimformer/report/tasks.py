"""Task scores and serving figures as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from slimformer.report.tables import number_table

NONE = "–"


def task_table(report: dict[str, Any]) -> RenderableType:
    """One line for each score, below the data: both models, their difference with its interval and test, recovery."""
    title = f"{report['task']} · {report['small']} against {report['dense']}"
    table = number_table(title, "", "dense", "small", "difference (95 %)", "p", "recovery")
    for metric in report["metrics"]:
        table.add_row(
            f"{metric['name']} ({'↓' if metric['better'] == 'lower' else '↑'})",
            *(_within(metric[name], metric[f"{name}_low"], metric[f"{name}_high"], ".2f") for name in SIDES),
            _within(metric["difference"], metric["low"], metric["high"], "+.2f"),
            _number(metric["p"], ".3f"),
            _within(metric["recovery"], metric["recovery_low"], metric["recovery_high"], ".1f", " %"),
        )
    settings = " · ".join(f"{name} {_plain(value)}" for name, value in report["settings"].items())
    above = Text(f"measured on {report['examples']:,} {report['unit']} of {_scored(report)}")
    return Group(above, table, *(Text(line, style="dim") for line in (settings, *report["notes"])))


SIDES = ("dense", "small")
LOADS = ("dense rate", "small rate", "dense, inputs", "small, inputs", "dense peak", "small peak")


def bench_table(report: dict[str, Any]) -> RenderableType:
    """Latencies, then rates and peaks, one line for each phase and batch size; weights and cache below."""
    title = f"{report['small']} against {report['dense']}"
    times = number_table(title, "", "batch", "dense", "small", "small / dense", "quartiles")
    loads = number_table("", "", "batch", *LOADS)
    for row in report["measurements"]:
        what = row["phase"], str(row["batch"])
        seconds = (f"{1e3 * row[f'{name}_seconds']:.1f} ms" for name in SIDES)
        times.add_row(*what, *seconds, f"{row['ratio']:.3f}", f"{row['ratio_low']:.3f} … {row['ratio_high']:.3f}")
        rates = (f"{row[f'{name}_rate']:,.0f}/s" for name in SIDES)
        whole = (f"{rate:,.1f}/s" if (rate := row.get(f"{name}_sequence_rate")) else NONE for name in SIDES)
        peaks = (f"{peak / 1e6:.1f} MB" if (peak := row[f"{name}_peak_bytes"]) else NONE for name in SIDES)
        loads.add_row(*what, *rates, *whole, *peaks)
    sizes = [("weights", "weights_bytes"), ("KV cache of one sequence", "kv_cache_bytes")]
    lines = [f"{name}: {_sizes(report[key])}" for name, key in sizes if report[key]["dense"]]
    plural = "" if report["threads"] == 1 else "s"
    where = f"{report['threads']} thread{plural} on {report['device']} in {report.get('runtime', 'torch')}"
    lines.append(
        f"T = {report['seq_len']} · medians of {report['repeats']} interleaved rounds · {where} · ratios with "
        f"quartiles · rates in {report['unit']} and whole inputs · peak: tensors besides the weights"
    )
    return Group(times, loads, *(Text(line, style="dim") for line in lines))


def _sizes(pair: dict[str, int]) -> str:
    return f"{pair['dense'] / 1e6:.2f} MB → {pair['small'] / 1e6:.2f} MB ({pair['small'] / pair['dense']:.3f})"


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _within(value: float | None, low: float | None, high: float | None, form: str, unit: str = "") -> str:
    """A number with its interval; a dash where there is none."""
    return f"{_number(value, form)}{unit} [{_number(low, form)}, {_number(high, form)}]" if value is not None else NONE


def _scored(score: dict[str, Any]) -> str:
    """Where the rows came from: the files by name, as a folder may hold several parts."""
    return ", ".join(score["files"]) or str(score["data"])


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)

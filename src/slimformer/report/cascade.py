"""What a cascade does on data that set nothing in it: quality against mean MACs, as JSON and as a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from slimformer.evaluate.intervals import paired_difference
from slimformer.evaluate.routing import Macs, Outcomes, Point, at_threshold, routed_losses, routing_curve
from slimformer.report.names import source_names
from slimformer.report.tables import number_table

FORMAT = 1
SHARES = 10  # the curve is shown at this many equal steps of the share that is handed on

# measure of `Outcomes` → its name in a report, and how it follows from a mean loss
QUALITY: dict[str, tuple[str, Callable[[float], float]]] = {
    "error": ("accuracy", lambda loss: 1 - loss),
    "disagreement": ("agreement", lambda loss: 1 - loss),
    "nats per token": ("perplexity", math.exp),
}


def routing_report(outcomes: Outcomes, macs: Macs, threshold: float) -> dict[str, Any]:
    """The two models alone, the cascade at its threshold, and the way between them in steps of a tenth.

    `lost` is the loss of the cascade less that of the large model (share of errors or of disagreements, nats per
    token), with the 95 % interval of a paired bootstrap. Cost O(n log n) and the bootstrap.
    """
    curve = routing_curve(outcomes, macs)
    steps = [min(curve, key=lambda point: abs(point.routed - i / SHARES)) for i in range(SHARES + 1)]
    small, large = (at_threshold(outcomes, macs, nats).loss for nats in (math.inf, 0.0))
    chosen = _described(at_threshold(outcomes, macs, threshold), outcomes.measure)
    name, quality = QUALITY[outcomes.measure]
    return {
        "measure": name,
        "inputs": len(outcomes.entropy),
        "small": {"macs": macs[0], name: quality(small)},
        "large": {"macs": macs[1], name: quality(large)},
        "cascade": {**chosen, **_lost(outcomes, threshold)},
        "curve": [_described(point, outcomes.measure) for point in dict.fromkeys(steps)],
    }


def show_routing(report: dict[str, Any], console: Console) -> None:
    """Print quality against mean MACs: both models alone, and the cascade at a number of thresholds."""
    name = report["measure"]
    title = f"{report['model']} · cascade of {report['recipe']} cuts"
    table = number_table(title, "", "handed on", "mean MACs", "by token", name)
    for role in ("small", "large"):
        alone = report[role]
        table.add_row(f"{role} alone", "", f"{alone['macs']:.3f}", "", f"{alone[name]:.4g}")
    table.add_section()
    for point in report["curve"]:
        table.add_row("", *_cells(point, name), style="dim")
    table.add_section()
    table.add_row("cascade", *_cells(report["cascade"], name), style="bold")
    above = f"measured on {source_names(str(report['data']['name']))}: {report['inputs']:,} inputs held out"
    console.print(Group(Text(above), table, Text(_caption(report), style="dim")))
    for warning in report["warnings"]:
        console.print(Text(f"note: {warning}", style="yellow"))


def _described(point: Point, measure: str) -> dict[str, Any]:
    name, quality = QUALITY[measure]
    nats = None if math.isinf(point.threshold) else point.threshold
    shares = {"routed": point.routed, "macs": point.macs, "token_macs": point.token_macs}
    return {"threshold": nats, **shares, name: quality(point.loss)}


def _lost(outcomes: Outcomes, threshold: float) -> dict[str, float | None]:
    if len(outcomes.large) < 2:
        return {"lost": None, "lost_low": None, "lost_high": None}
    gap = paired_difference(outcomes.large, routed_losses(outcomes, threshold), weights=outcomes.weights)
    return {"lost": gap.value, "lost_low": gap.low, "lost_high": gap.high}


def _cells(point: dict[str, Any], name: str) -> tuple[str, str, str, str]:
    return (
        f"{100 * point['routed']:.0f} %", f"{point['macs']:.3f}", f"{point['token_macs']:.3f}", f"{point[name]:.4g}",
    )  # fmt: skip


def _caption(report: dict[str, Any]) -> str:
    cascade = report["cascade"]
    nats = "none" if cascade["threshold"] is None else f"{cascade['threshold']:.4g} nats"
    parts = [f"threshold {nats}, set on {report['select']['inputs']:,} other inputs"]
    if cascade["lost"] is not None:
        low, high = cascade["lost_low"], cascade["lost_high"]
        parts.append(f"loss against the large model alone {cascade['lost']:+.4f} ({low:+.4f} … {high:+.4f})")
    return " · ".join(parts)

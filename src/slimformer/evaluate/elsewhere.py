"""A cut at home and elsewhere: what it loses on text like the calibration text, and on text of sources nobody fitted.

The loss is one that is never negative, so that sources cannot cancel each other: KL(dense ‖ small) where a model gives
probabilities, 1 − cosine of pooled states where it gives states. A difference of nats can be negative on text the dense
model cannot model; it is shown as well. Elsewhere the loss is the mean over sources, each counted once, however long.

The interval elsewhere is over documents of these sources: with v_s and [l_s, h_s] the loss of source s and its
interval, the mean over S of them is within √Σ(v_s − l_s)² / S below and √Σ(h_s − v_s)² / S above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slimformer.calibrate.builtin import BUILTIN
from slimformer.calibrate.gather import Data
from slimformer.evaluate.by_text import compare_pair
from slimformer.messages.words import option
from slimformer.models.load import Loaded

# by what a metric is called, what its loss is called and the largest it can be
LOSSES = {
    "kl": ("KL", math.inf),
    "relative squared change of the output": ("relative squared change of the output", math.inf),
    "cosine of pooled states": ("1 − cosine of pooled states", 2.0),
    "cka": ("1 − CKA", 1.0),
    "bits per byte": ("bits per byte lost", math.inf),
}
NATS = "nats per token"
TWICE = 2.0  # a loss elsewhere beyond so many times the loss at home is warned of
LEAST = 0.005  # unless it is so small


def other_text(dense: Loaded, small: Loaded, data: Data) -> list[dict[str, Any]]:
    """The metrics of a report on text of sources that were neither fitted nor chosen on."""
    rows = []
    for name, batches in data.other.items():
        fidelity = compare_pair(dense, small, batches, data.other_texts.get(name, []), data.seq_len)
        metrics = [metric.to_json() for metric in fidelity]
        tokens = sum(batch.tokens for batch in batches)
        rows.append({"name": f"{BUILTIN}: {name}", "unfitted": True, "tokens": tokens, "metrics": metrics})
    return rows


def home_and_elsewhere(
    metrics: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The same loss at home, on average elsewhere, and where it is worst; None where nothing was measured elsewhere."""
    unfitted = [other for other in others if other.get("unfitted")]
    tables = [metrics, *(other["metrics"] for other in unfitted)]
    name = next((name for name in LOSSES if all(_value(table, name) is not None for table in tables)), None)
    if not unfitted or name is None:
        return None
    home, *there = (_loss(table, name) for table in tables)
    worst = max(range(len(there)), key=lambda i: there[i][0])
    low, high = _of_mean(there, LOSSES[name][1])
    summary = {
        "metric": LOSSES[name][0], "home": home[0], "home_low": home[1], "home_high": home[2],
        "elsewhere": math.fsum(loss for loss, *_ in there) / len(there), "low": low, "high": high,
        "sources": len(there), "worst": {"name": str(unfitted[worst]["name"]), "loss": there[worst][0]},
    }  # fmt: skip
    return summary | _nats(tables)


def headline_metrics(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the metrics on one source those that stand in a table: what the loss is measured by, and nats."""
    chosen = next((name for name in LOSSES if _value(metrics, name) is not None), None)
    return [metric for metric in metrics if metric["name"] in (chosen, NATS)]


def _nats(tables: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The differences of nats, where there are any."""
    moved = [_change(table, NATS) for table in tables]
    if any(change is None for change in moved):
        return {}
    home, *there = (change or 0.0 for change in moved)
    return {"nats_home": home, "nats_elsewhere": math.fsum(there) / len(there)}


def _of_mean(losses: Sequence[tuple[float, float | None, float | None]], most: float) -> tuple[Any, Any]:
    """The interval of a mean of independent numbers from the interval of each; none where one has none."""
    below = [None if low is None else value - low for value, low, _ in losses]
    above = [None if high is None else high - value for value, _, high in losses]
    if any(side is None for side in (*below, *above)):
        return None, None
    mean = math.fsum(value for value, *_ in losses) / len(losses)
    down, up = (math.hypot(*(side or 0.0 for side in sides)) / len(losses) for sides in (below, above))
    return max(0.0, mean - down), min(most, mean + up)


def _loss(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float | None, float | None]:
    """The loss and its interval; bounds are those of small − dense."""
    metric = _metric(metrics, name)
    assert metric is not None
    start, low, high = float(metric.get("dense") or 0.0), metric.get("low"), metric.get("high")
    change = float(metric["small"]) - start
    if metric["better"] == "higher":
        change, low, high = -change, None if high is None else -high, None if low is None else -low
    return max(0.0, change), None if low is None else max(0.0, low), high


def _change(metrics: Sequence[Mapping[str, Any]], name: str) -> float | None:
    metric = _metric(metrics, name)
    if metric is None or metric.get("small") is None or metric.get("dense") is None:
        return None
    return float(metric["small"]) - float(metric["dense"])


def _value(metrics: Sequence[Mapping[str, Any]], name: str) -> float | None:
    metric = _metric(metrics, name)
    value = None if metric is None else metric.get("small")
    return value if value is not None and math.isfinite(value) else None


def _metric(metrics: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((each for each in metrics if each["name"] == name), None)


def elsewhere_line(short: Mapping[str, Any]) -> str:
    """Both losses in one line, and in nats."""
    worst = short["worst"]
    home = _between(short["home"], short.get("home_low"), short.get("home_high"))
    there = _between(short["elsewhere"], short.get("low"), short.get("high"))
    moved = [short.get(key) for key in ("nats_home", "nats_elsewhere")]
    nats = "" if None in moved else f"; {NATS} {moved[0]:+.3f} and {moved[1]:+.3f}"
    return (
        f"{short['metric']}: {home} on text like the calibration text, {there} on other text ({short['sources']} "
        f"sources that were not fitted; worst {worst['loss']:.3g}, {worst['name']}){nats}"
    )


def _between(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3g}" if low is None or high is None else f"{value:.3g} ({low:.3g} … {high:.3g})"


def narrow_notes(short: Mapping[str, Any] | None, data: str) -> list[str]:
    """A warning where a cut loses more than twice as much elsewhere as at home."""
    if short is None or short["elsewhere"] <= max(TWICE * short["home"], LEAST):
        return []
    return [
        f"on other text the model loses {short['elsewhere']:.3g} ({short['metric']}), on text like {data} "
        f"{short['home']:.3g}: add text of what it will read with {option('data')}, or keep more"
    ]

"""What a report comes to, in one sentence and one of four colours. Console, card and page say the same.

    green    what is lost can hardly be told from nothing, at home and elsewhere
    amber    it can be told: look at your own task before you use it
    red      another model than the one it was made from
    grey     nothing was measured that says so

The loss is that of `evaluate.elsewhere`: KL(dense ‖ small) in nats, or 1 − cosine of pooled states, each with limits at
home (text like the calibration text) and elsewhere; the worse of the two colours counts. They are conventions, not
findings: a certificate says more, and a task of your own says most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slimformer.evaluate.elsewhere import LOSSES

COLOURS = ("green", "amber", "red")
# by what the loss is called: up to these it is green, up to those amber; at home and elsewhere
THRESHOLDS: dict[str, dict[str, tuple[float, float]]] = {
    "KL": {"home": (0.05, 0.25), "elsewhere": (0.1, 0.5)},
    "1 − cosine of pooled states": {"home": (0.02, 0.1), "elsewhere": (0.04, 0.2)},
    "1 − CKA": {"home": (0.02, 0.1), "elsewhere": (0.04, 0.2)},
    "relative squared change of the output": {"home": (0.02, 0.1), "elsewhere": (0.04, 0.2)},
    "bits per byte lost": {"home": (0.02, 0.1), "elsewhere": (0.04, 0.2)},
}
SAME_SPEED = 0.05  # a ratio nearer to one than that is noise


@dataclass(frozen=True)
class Verdict:
    """`sentence` says what was won and lost; `why` by which thresholds the `colour` follows."""

    sentence: str
    colour: str
    why: str

    @property
    def light(self) -> str:
        """The colour in words, for where none can be shown."""
        return f"{self.colour}: {self.why}"


def verdict(report: Mapping[str, Any]) -> Verdict:
    """The verdict on a report, in the form of `report.json`."""
    metrics = {metric["name"]: metric for metric in report.get("metrics") or () if metric["small"] is not None}
    parts = [_speed(report.get("latency")), _size(report.get("dense"), report.get("small")), _lost(metrics)]
    near = metrics.get("neighbour overlap")
    if near is not None:
        parts.append(f"neighbours {100 * near['small']:.0f} % the same")
    colour, why = _colour(report, metrics)
    sentence = ", ".join(part for part in parts[:3] if part) + "".join(f"; {part}" for part in parts[3:])
    return Verdict(f"{sentence[:1].upper()}{sentence[1:]}.", colour, why)


def _speed(latency: Mapping[str, Any] | None) -> str:
    if not latency:
        return "speed not measured"
    times = 1 / latency["end_to_end"]["ratio"]
    if abs(times - 1) < SAME_SPEED:
        return "as fast as before"
    return f"{times:.1f} × faster" if times > 1 else f"{1 / times:.1f} × slower"


def _size(dense: Mapping[str, Any] | None, small: Mapping[str, Any] | None) -> str:
    if not dense or not small:
        return ""
    saved = round(100 * (1 - small["bytes"] / dense["bytes"]))
    if not saved:
        return "as large as before"
    return f"{saved} % smaller" if saved > 0 else f"{-saved} % larger"


def _lost(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """The metric that says most, in its own words."""
    if "accuracy" in metrics and metrics["accuracy"]["dense"] is not None:
        points = 100 * (metrics["accuracy"]["dense"] - metrics["accuracy"]["small"])
        return f"{abs(points):.1f} points {'lost' if points >= 0 else 'won'}"
    if "perplexity" in metrics and metrics["perplexity"]["dense"]:
        dense, small = metrics["perplexity"]["dense"], metrics["perplexity"]["small"]
        return f"perplexity {dense:.3g} → {small:.3g} ({100 * (small / dense - 1):+.0f} %)"
    words = {
        "agreement": "the same answer {:.0f} % of the time", "cosine of pooled states": "embeddings {:.1f} % alike",
        "cka": "states {:.1f} % alike",
    }  # fmt: skip
    name = next((name for name in words if name in metrics), None)
    return words[name].format(100 * metrics[name]["small"]) if name else "what is lost was not measured"


def _colour(report: Mapping[str, Any], metrics: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    losses = _losses(report, metrics)
    if losses is None:
        exact = report.get("lossless")
        return ("green", "no output changes") if exact else ("grey", "nothing was measured")
    name, value = losses
    limits = THRESHOLDS[name]
    worst, words = 0, []
    for where, loss in value.items():
        green, amber = limits[where]
        worst = max(worst, (loss > green) + (loss > amber))
        words.append(f"{loss:.3f} {where}")
    allowed = [" and ".join(f"{limits[where][n]:g} {where}" for where in value) for n in (0, 1)]
    unknown = "" if "elsewhere" in value else "; elsewhere was not measured"
    return COLOURS[worst], f"{name} {', '.join(words)}; green to {allowed[0]}, amber to {allowed[1]}{unknown}"


def _losses(report: Mapping[str, Any], metrics: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, float]] | None:
    """The loss at home, and elsewhere where it was measured."""
    both = report.get("elsewhere")
    if both:
        return both["metric"], {"home": both["home"], "elsewhere": both["elsewhere"]}
    for name, (called, _) in LOSSES.items():
        metric = metrics.get(name)
        if metric is not None:
            change = metric["small"] - (metric["dense"] or 0.0)
            return called, {"home": max(0.0, -change if metric["better"] == "higher" else change)}
    return None

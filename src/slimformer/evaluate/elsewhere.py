"""A cut at home and elsewhere: what it loses on text like the calibration text, and on text of sources nobody fitted.

The loss is that of the first metric there is of: nats per token, KL, accuracy, cosine of pooled states, other ones; it
is small − dense where lower is better and dense − small where higher is. Elsewhere it is the mean over sources, each
counted once however long it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from slimformer.calibrate.builtin import BUILTIN
from slimformer.calibrate.text import Batch
from slimformer.evaluate.compare import compare
from slimformer.messages.words import option

ORDER = ("nats per token", "kl", "accuracy", "cosine of pooled states")
TWICE = 2.0  # a loss elsewhere beyond so many times the loss at home is warned of


def other_text(
    dense: PreTrainedModel, small: PreTrainedModel, sources: Mapping[str, Sequence[Batch]]
) -> list[dict[str, Any]]:
    """The metrics of a report on text of sources that were neither fitted nor chosen on."""
    rows = []
    for name, batches in sources.items():
        metrics = [metric.to_json() for metric in compare(dense, small, batches)]
        tokens = sum(batch.tokens for batch in batches)
        rows.append({"name": f"{BUILTIN}: {name}", "unfitted": True, "tokens": tokens, "metrics": metrics})
    return rows


def home_and_elsewhere(
    metrics: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The same loss at home, on average elsewhere, and where it is worst; None where nothing was measured elsewhere."""
    names = {metric["name"] for metric in metrics}.intersection(
        *({metric["name"] for metric in other["metrics"]} for other in others)
    )
    if not others or not names:
        return None
    name = next((each for each in ORDER if each in names), sorted(names)[0])
    losses = {str(other["name"]): _loss(other["metrics"], name) for other in others}
    worst = max(losses, key=losses.__getitem__)
    return {
        "metric": name, "home": _loss(metrics, name), "elsewhere": sum(losses.values()) / len(losses),
        "sources": len(losses), "worst": {"name": worst, "loss": losses[worst]},
    }  # fmt: skip


def _loss(metrics: Sequence[Mapping[str, Any]], name: str) -> float:
    metric = next(each for each in metrics if each["name"] == name)
    change = metric["small"] - (metric["dense"] or 0.0)
    return float(change if metric["better"] == "lower" else -change)


def elsewhere_line(short: Mapping[str, Any]) -> str:
    """Both losses in one line."""
    worst = short["worst"]
    return (
        f"{short['metric']}: {short['home']:+.3f} on text like the calibration text, {short['elsewhere']:+.3f} on "
        f"other text ({short['sources']} sources that were not fitted; worst {worst['loss']:+.3f}, {worst['name']})"
    )


def narrow_notes(short: Mapping[str, Any] | None, data: str) -> list[str]:
    """A warning where a cut loses more than twice as much elsewhere as at home."""
    if short is None or short["elsewhere"] <= TWICE * max(short["home"], 0.0):
        return []
    return [
        f"on other text the model loses {short['elsewhere']:.3f} ({short['metric']}), on text like {data} "
        f"{short['home']:.3f}: add text of what it will read with {option('data')}, or keep more"
    ]

"""The verdict: one sentence that says what was won and lost, and a light by thresholds that are stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slimformer.evaluate.fidelity import neighbour_overlap
from slimformer.evaluate.verdict import THRESHOLDS, verdict


def metric(name: str, dense: float | None, small: float, better: str = "lower") -> dict[str, Any]:
    return {"name": name, "dense": dense, "small": small, "better": better}


def report(*metrics: dict[str, Any], ratio: float | None = None, small: int = 59, **more: Any) -> dict[str, Any]:
    latency = None if ratio is None else {"end_to_end": {"ratio": ratio}}
    return {"metrics": list(metrics), "latency": latency, "dense": {"bytes": 100}, "small": {"bytes": small}, **more}


def elsewhere(home: float, there: float, name: str = "KL") -> dict[str, Any]:
    return {"metric": name, "home": home, "elsewhere": there}


def test_the_sentence_of_a_classifier_and_of_an_encoder() -> None:
    kl = metric("kl", 0.0, 0.01)
    found = verdict(report(metric("accuracy", 0.9, 0.897, "higher"), kl, ratio=0.625))
    assert found.sentence == "1.6 × faster, 41 % smaller, 0.3 points lost."
    cosine = metric("cosine of pooled states", 1.0, 0.963, "higher")
    found = verdict(report(cosine, metric("neighbour overlap", 1.0, 0.92, "higher")))
    assert found.sentence == "Speed not measured, 41 % smaller, embeddings 96.3 % alike; neighbours 92 % the same."


@pytest.mark.parametrize(
    ("ratio", "small", "says"),
    [(1.5, 100, "1.5 × slower, as large as before"), (1.02, 120, "As fast as before, 20 % larger")],
)
def test_what_got_worse_is_said(ratio: float, small: int, says: str) -> None:
    found = verdict(report(metric("perplexity", 4.0, 5.0), ratio=ratio, small=small))
    assert found.sentence == f"{says[0].upper()}{says[1:]}, perplexity 4 → 5 (+25 %)."


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_worse_of_home_and_elsewhere_decides(name: str) -> None:
    (green, amber), (green_there, amber_there) = THRESHOLDS[name]["home"], THRESHOLDS[name]["elsewhere"]
    for home, there, colour in (
        (green, green_there, "green"), (1.01 * green, 0.0, "amber"), (0.0, 1.01 * green_there, "amber"),
        (amber, amber_there, "amber"), (1.01 * amber, 0.0, "red"), (0.0, 1.01 * amber_there, "red"),
    ):  # fmt: skip
        found = verdict(report(elsewhere=elsewhere(home, there, name)))
        assert found.colour == colour
        assert f"green to {green:g} home and {green_there:g} elsewhere" in found.why  # stated wherever it is shown


def test_what_was_not_measured_is_said() -> None:
    assert verdict(report()).light == "grey: nothing was measured"
    assert verdict(report(lossless={"rewrites": []})).light == "green: no output changes"
    alone = verdict(report(metric("kl", 0.0, 0.3)))
    assert alone.colour == "red" and alone.why.endswith("; elsewhere was not measured")


def test_the_thresholds_are_those_of_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    for name, limits in THRESHOLDS.items():
        word = "KL(dense" if name == "KL" else name.removesuffix(" of the output").removesuffix(" lost")
        row = next(line for line in text.splitlines() if line.count("|") == 6 and word in line)
        shown = [float(cell) for cell in row.split("|")[2:6]]
        (a, b), (c, d) = limits["home"], limits["elsewhere"]
        assert shown == [a, c, b, d], name


def test_neighbours_do_not_mind_turning_and_are_chance_where_nothing_is_left() -> None:
    X = torch.randn(400, 24, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(24, 24, dtype=torch.float64)).Q
    assert bool((neighbour_overlap(X, 3 * X @ turn) == 1.0).all())
    apart = neighbour_overlap(X, torch.randn(400, 24, dtype=torch.float64))
    assert float(apart.mean()) == pytest.approx(10 / 399, abs=0.01)
    assert len(neighbour_overlap(X[:2], X[:2])) == 0
    assert 0.5 < float(neighbour_overlap(X, X + 0.1 * torch.randn_like(X)).mean()) < 1

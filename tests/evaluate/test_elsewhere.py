"""A cut at home and elsewhere, in one line, and a warning where they differ much."""

from __future__ import annotations

import pytest

from slimformer.evaluate.elsewhere import elsewhere_line, home_and_elsewhere, narrow_notes


def metric(name: str, dense: float, small: float, better: str = "lower") -> dict[str, object]:
    return {"name": name, "dense": dense, "small": small, "better": better}


HOME = [metric("perplexity", 10, 12), metric("nats per token", 2.0, 2.1)]


def elsewhere(*losses: float) -> list[dict[str, object]]:
    return [{"name": f"source {i}", "metrics": [metric("nats per token", 3.0, 3.0 + x)]} for i, x in enumerate(losses)]


def test_losses_are_of_one_metric_and_sources_count_once() -> None:
    short = home_and_elsewhere(HOME, elsewhere(0.1, 0.2, 0.6))
    assert short is not None and short["metric"] == "nats per token"
    assert (short["home"], short["elsewhere"]) == pytest.approx((0.1, 0.3))
    assert short["worst"] == {"name": "source 2", "loss": pytest.approx(0.6)}
    assert "+0.100 on text like the calibration text, +0.300 on other text" in elsewhere_line(short)


def test_where_higher_is_better_a_fall_is_a_loss() -> None:
    short = home_and_elsewhere([metric("accuracy", 0.9, 0.8, "higher")], [
        {"name": "x", "metrics": [metric("accuracy", 0.9, 0.6, "higher")]}
    ])  # fmt: skip
    assert short is not None and (short["home"], short["elsewhere"]) == pytest.approx((0.1, 0.3))


def test_more_than_twice_the_loss_elsewhere_is_warned_of() -> None:
    for losses, warned in (((0.15, 0.2), False), ((0.2, 0.3), True)):
        notes = narrow_notes(home_and_elsewhere(HOME, elsewhere(*losses)), "mine.txt")
        assert bool(notes) == warned
        assert all("mine.txt" in note and "\n" not in note for note in notes)


def test_nothing_measured_elsewhere_says_nothing() -> None:
    assert home_and_elsewhere(HOME, []) is None and narrow_notes(None, "x") == []

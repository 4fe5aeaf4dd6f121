"""A cut at home and elsewhere, in one line, and a warning where they differ much."""

from __future__ import annotations

import pytest

from slimformer.evaluate.elsewhere import elsewhere_line, headline_metrics, home_and_elsewhere, narrow_notes


def metric(
    name: str, dense: float, small: float, better: str = "lower", low: float | None = None, high: float | None = None
) -> dict[str, object]:
    return {"name": name, "dense": dense, "small": small, "better": better, "low": low, "high": high}


def language(kl: float, nats: float, spread: float = 0.02) -> list[dict[str, object]]:
    return [
        metric("perplexity", 10, 12),
        metric("nats per token", 3.0, 3.0 + nats),
        metric("kl", 0.0, kl, low=kl - spread, high=kl + spread),
    ]


HOME = language(0.1, 0.1)


def elsewhere(*losses: float, nats: float = 0.0) -> list[dict[str, object]]:
    return [
        {"name": f"source {i}", "unfitted": True, "metrics": language(x, nats * (-1) ** i)}
        for i, x in enumerate(losses)
    ]


def test_losses_are_of_one_metric_and_sources_count_once() -> None:
    short = home_and_elsewhere(HOME, elsewhere(0.1, 0.2, 0.6))
    assert short is not None and short["metric"] == "KL"
    assert (short["home"], short["elsewhere"]) == pytest.approx((0.1, 0.3))
    assert short["worst"] == {"name": "source 2", "loss": pytest.approx(0.6)}
    assert "0.1 (0.08 … 0.12) on text like the calibration text, 0.3 (" in elsewhere_line(short)


def test_nats_that_cancel_hide_nothing() -> None:
    """On text the dense model cannot model a cut may gain nats on one source and lose them on another."""
    short = home_and_elsewhere(language(0.3, 0.3), elsewhere(0.7, 1.2, nats=0.8))
    assert short is not None
    assert short["nats_elsewhere"] == pytest.approx(0.0) and short["elsewhere"] == pytest.approx(0.95)
    assert narrow_notes(short, "mine.txt")
    assert "nats per token +0.300 and +0.000" in elsewhere_line(short)


def test_the_interval_is_that_of_a_mean_of_sources_and_never_below_nothing() -> None:
    short = home_and_elsewhere(HOME, elsewhere(0.2, 0.2, 0.2, 0.2))
    assert short is not None
    assert (short["low"], short["high"]) == pytest.approx((0.19, 0.21))  # 0.02 / √4
    wide = home_and_elsewhere(HOME, [{"name": "x", "unfitted": True, "metrics": language(0.1, 0, spread=9)}])
    assert wide is not None and wide["low"] == 0.0
    single = [{"name": "x", "unfitted": True, "metrics": [metric("kl", 0.0, 0.3)]}]
    alone = home_and_elsewhere(HOME, single)
    assert alone is not None and alone["low"] is None and "0.3 on other text" in elsewhere_line(alone)


def test_of_encoders_the_loss_is_how_far_the_cosine_falls() -> None:
    cosine = [metric("cosine of pooled states", 1.0, x, "higher", x - 1.02, x - 0.98) for x in (0.9, 0.7)]
    short = home_and_elsewhere(cosine[:1], [{"name": "x", "unfitted": True, "metrics": cosine[1:]}])
    assert short is not None and (short["home"], short["elsewhere"]) == pytest.approx((0.1, 0.3))
    assert (short["low"], short["high"]) == pytest.approx((0.28, 0.32))
    assert short["metric"] == "1 − cosine of pooled states"


def test_more_than_twice_the_loss_elsewhere_is_warned_of_if_it_is_any() -> None:
    for losses, warned in (((0.15, 0.2), False), ((0.2, 0.3), True)):
        notes = narrow_notes(home_and_elsewhere(HOME, elsewhere(*losses)), "mine.txt")
        assert bool(notes) == warned
        assert all("mine.txt" in note and "\n" not in note for note in notes)
    assert not narrow_notes(home_and_elsewhere(language(1e-6, 0), elsewhere(1e-4)), "mine.txt")


def test_nothing_measured_elsewhere_says_nothing() -> None:
    assert home_and_elsewhere(HOME, []) is None and narrow_notes(None, "x") == []
    assert home_and_elsewhere(HOME, [{"name": "named by the user", "metrics": HOME}]) is None


def test_a_table_has_the_loss_and_the_nats_of_a_source() -> None:
    assert [each["name"] for each in headline_metrics(HOME)] == ["nats per token", "kl"]

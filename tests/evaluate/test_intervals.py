"""Bootstrap intervals: they cover what they promise, and the same seed gives the same numbers."""

import sys
from dataclasses import asdict

import numpy as np
import pytest

from slimformer.evaluate import mean_interval, paired_difference


def draws(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(size=n)


def test_an_interval_of_95_percent_covers_the_mean_about_as_often() -> None:
    trials, n, hits = 400, 40, 0
    for trial in range(trials):
        sample = np.random.default_rng(trial).normal(3.0, 2.0, n)
        interval = mean_interval(sample.tolist(), resamples=800, seed=trial)
        hits += interval.low <= 3.0 <= interval.high
    # 400 trials have a standard error of 1.1 %; at n = 40 the percentile interval falls about 1 % short
    assert 0.95 - 0.045 <= hits / trials <= 0.95 + 0.035


def test_p_below_5_percent_is_as_rare_as_it_says_when_nothing_differs() -> None:
    trials, n, alarms = 400, 40, 0
    for trial in range(trials):
        first, second = np.random.default_rng(trial).normal(size=(2, n))
        alarms += paired_difference(first.tolist(), second.tolist(), resamples=800, seed=trial).p < 0.05
    assert 0.05 - 0.035 <= alarms / trials <= 0.05 + 0.045


def test_width_is_that_of_the_normal_approximation() -> None:
    x = draws(2000)
    interval = mean_interval(x.tolist())
    error = x.std() / np.sqrt(len(x))
    assert interval.value == pytest.approx(x.mean())
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert mean_interval(x.tolist(), level=0.68).high - x.mean() == pytest.approx(error, rel=0.06)


def test_the_seed_decides() -> None:
    x = draws(30).tolist()
    assert mean_interval(x, seed=1) == mean_interval(x, seed=1)
    assert mean_interval(x, seed=1) != mean_interval(x, seed=2)


def test_scale_and_shift_carry_over() -> None:
    x = draws(30)
    plain, moved = mean_interval(x.tolist()), mean_interval((3 * x - 7).tolist())
    assert (moved.value, moved.low, moved.high) == pytest.approx(
        (3 * plain.value - 7, 3 * plain.low - 7, 3 * plain.high - 7)
    )


def test_constant_values_leave_no_doubt() -> None:
    interval = mean_interval([2.5] * 10)
    assert interval.low == interval.value == interval.high == 2.5


def test_equal_weights_are_no_weights_and_a_weight_is_a_share_of_the_mean() -> None:
    x = draws(30).tolist()
    weighted = mean_interval(x, weights=[4] * 30)
    plain = mean_interval(x)
    assert (weighted.low, weighted.high) == pytest.approx((plain.low, plain.high))
    assert mean_interval([1.0, 4.0], weights=[2, 1]).value == pytest.approx(2.0)


def test_a_small_shift_of_paired_values_is_seen_through_large_noise() -> None:
    first = 10 * draws(50)
    second = first + np.random.default_rng(1).normal(0.05, 0.05, 50)
    result = paired_difference(first.tolist(), second.tolist())
    assert result.value == pytest.approx((second - first).mean())
    assert 0 < result.low < result.value < result.high and result.p < 0.01


def test_swapping_the_models_turns_the_sign() -> None:
    first, second = draws(60, 0).tolist(), draws(60, 1).tolist()
    there, back = paired_difference(first, second), paired_difference(second, first)
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low))
    assert back.p == there.p


def test_p_and_the_interval_agree() -> None:
    for seed in range(40):
        first, second = np.random.default_rng(seed).normal([[0.0], [0.3]], 1.0, (2, 40))
        result = paired_difference(first.tolist(), second.tolist())
        if abs(result.p - 0.05) > 0.002:  # beside the edge, where one resample decides
            assert (result.p < 0.05) == (result.low > 0 or result.high < 0)


def test_no_difference_gives_p_one() -> None:
    result = paired_difference([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert result.p == 1.0 and result.value == result.low == result.high == 0.0


def test_p_is_never_zero() -> None:
    assert paired_difference([0.0] * 20, [1.0] * 20, resamples=99).p == pytest.approx(0.02)


def test_drawing_in_parts_gives_intervals_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draws(200).tolist()
    whole = mean_interval(x)
    monkeypatch.setattr(sys.modules["slimformer.evaluate.intervals"], "DRAWS", 1000)
    parts = mean_interval(x)
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), rel=0.02)


def test_what_has_no_interval_is_explained() -> None:
    with pytest.raises(ValueError, match="at least 2 examples, not 1"):
        mean_interval([1.0])
    with pytest.raises(ValueError, match="finite"):
        mean_interval([1.0, float("nan")])
    with pytest.raises(ValueError, match="3 values need as many positive weights"):
        mean_interval([1.0, 2.0, 3.0], weights=[1, 0, 1])
    with pytest.raises(ValueError, match="3 and 2 values cannot be paired"):
        paired_difference([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"level 95 must lie between 0 and 1"):
        mean_interval([1.0, 2.0], level=95)


def test_results_are_plain() -> None:
    assert all(type(value) is float for value in asdict(paired_difference([1.0, 2.0], [3.0, 5.0])).values())
    assert all(type(value) is float for value in asdict(mean_interval([1.0, 2.0])).values())

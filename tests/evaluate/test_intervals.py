"""Intervals of means: they cover as often as they say, few and unequal documents included."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from scipy.stats import multinomial

from slimformer.evaluate.intervals import (
    mean_interval,
    paired_difference,
    paired_shares,
    positive_interval,
    share_interval,
    smooth_interval,
)


def draws(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(size=n)


def coverage(draw, interval, truth: float, trials: int = 800) -> float:
    """How often an interval of 95 % holds the truth; its standard error is 0.8 % for 800 trials."""
    found = (interval(*draw(np.random.default_rng(trial))) for trial in range(trials))
    return sum(each.low <= truth <= each.high for each in found) / trials


def unequal(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents between 50 and 2,000 tokens, long-tailed, whose means vary less the longer they are."""
    weights = np.clip(rng.lognormal(5.5, 0.8, n), 50, 2000)
    return 3.0 + rng.normal(0, 1, n) * np.sqrt(100 / weights), weights


@pytest.mark.parametrize("n", [4, 12, 40])
def test_means_of_unequal_documents_are_covered_as_often_as_said(n: int) -> None:
    """Percentiles of a bootstrap would cover them 77 to 92 % of the time."""
    found = coverage(lambda rng: unequal(rng, n), lambda x, w: mean_interval(x.tolist(), weights=w.tolist()), 3.0)
    assert 0.925 <= found <= 0.985  # a little more often with few, never less


def test_rare_documents_that_suffer_most_are_allowed_for() -> None:
    """One in thirty has three times the KL, as in TinyStories: most samples of 37 hold one or none of them. With the
    skewness of the sample alone this was 91 %."""

    def draw(rng: np.random.Generator) -> tuple[np.ndarray]:
        usual = 0.15 * rng.lognormal(0, 0.2, 37)
        return (np.where(rng.random(37) < 1 / 30, 3 * usual, usual),)

    truth = 0.15 * np.exp(0.02) * (1 + 2 / 30)
    assert 0.925 <= coverage(draw, lambda x: positive_interval(x.tolist()), truth) <= 0.985


def test_shares_of_the_positions_of_documents_are_as_skewed_as_documents_are() -> None:
    """The interval of Agresti and Coull alone, which knows of examples, held it in 91 % of samples."""

    def draw(rng: np.random.Generator) -> tuple[np.ndarray]:
        return (rng.normal(0.8, 0.02, 37) - np.where(rng.random(37) < 1 / 15, 0.2, 0.0),)

    found = coverage(draw, lambda x: share_interval(x.tolist(), weights=[400.0] * 37), 0.8 - 0.2 / 15)
    assert 0.925 <= found <= 0.975


@pytest.mark.parametrize("n", [12, 40])
def test_skewed_positive_means_are_covered_and_no_bound_is_negative(n: int) -> None:
    def interval(x: np.ndarray):
        found = positive_interval(x.tolist())
        assert 0 < found.low <= found.value <= found.high
        return found

    found = coverage(lambda rng: (rng.gamma(1.0, 0.1, n),), interval, 0.1)
    assert 0.925 <= found <= 0.985  # a little more often: the tail of an exponential is shorter than that of KL


@pytest.mark.parametrize(("share", "n"), [(0.98, 100), (0.8, 60), (0.5, 20)])
def test_shares_are_covered_also_where_all_examples_are_alike(share: float, n: int) -> None:
    draw = lambda rng: ((rng.random(n) < share).astype(float),)  # noqa: E731
    assert 0.925 <= coverage(draw, lambda x: share_interval(x.tolist()), share) <= 0.99
    certain = share_interval([1.0] * n)
    assert certain.high == 1.0 and certain.low < 1 - 1 / n


def test_a_difference_of_shares_without_discordant_pairs_is_not_certain() -> None:
    found = paired_shares([1.0] * 60, [1.0] * 60)
    assert found.value == 0 and found.low < -0.01 < 0.01 < found.high
    draw = lambda rng: rng.multinomial(100, [0.9, 0.07, 0.03])  # noqa: E731
    gaps = lambda same, worse, better: paired_shares(  # noqa: E731
        [1.0] * (same + worse) + [0.0] * better, [1.0] * same + [0.0] * worse + [1.0] * better
    )
    assert 0.925 <= coverage(draw, gaps, -0.04) <= 0.985


def pairs(same: int, worse: int, better: int):
    return paired_shares([1.0] * (same + worse) + [0.0] * better, [1.0] * same + [0.0] * worse + [1.0] * better)


@pytest.mark.parametrize(("n", "worse", "better"), [(60, 0.04, 0.01), (100, 0.02, 0.01), (650, 0.004, 0.001)])
def test_differences_of_accuracy_are_covered_where_few_pairs_differ(n: int, worse: float, better: float) -> None:
    """Over all outcomes with their probabilities: nothing is drawn."""
    held = total = 0.0
    for b in range(math.ceil(8 + 2 * n * worse)):
        for c in range(math.ceil(8 + 2 * n * better)):
            chance = multinomial.pmf([n - b - c, b, c], n, [1 - worse - better, worse, better])
            found = pairs(n - b - c, b, c)
            held, total = held + chance * (found.low <= better - worse <= found.high), total + chance
    assert total > 0.999
    assert 0.93 <= held / total <= 0.975


@pytest.mark.parametrize(
    ("same", "worse", "better"), [(50, 3, 1), (60, 0, 0), (0, 5, 0), (0, 0, 5), (1, 1, 0), (0, 4, 4)]
)
def test_a_difference_seen_from_the_other_side_is_the_same(same: int, worse: int, better: int) -> None:
    found, other = pairs(same, worse, better), pairs(same, better, worse)
    assert (found.low, found.value, found.high) == pytest.approx((-other.high, -other.value, -other.low), abs=1e-9)
    assert -1 <= found.low < found.high <= 1 and found.low <= found.value <= found.high


def test_few_documents_leave_few_degrees_of_freedom() -> None:
    """Two documents have an interval of t with one degree of freedom, 12.7 errors wide on either side."""
    found = mean_interval([0.0, 1.0])
    assert found.high - found.value == pytest.approx(12.706 / 2, rel=1e-3)
    even, uneven = (mean_interval([0.0, 1.0, 0.5, 0.4], weights=[heavy, 1, 1, 1]) for heavy in (1, 100))
    assert uneven.high - uneven.low > even.high - even.low


def test_the_interval_of_a_function_of_means_is_theirs_to_first_order() -> None:
    x = 0.01 * draws(200)
    mean = mean_interval(x.tolist())
    root = smooth_interval(np.exp(mean.value), (np.exp(mean.value) * x).tolist())
    assert (root.low, root.high) == pytest.approx((np.exp(mean.low), np.exp(mean.high)), rel=1e-4)


def test_p_below_5_percent_is_as_rare_as_it_says_when_nothing_differs() -> None:
    trials, n, alarms = 800, 40, 0
    for trial in range(trials):
        first, second = np.random.default_rng(trial).normal(size=(2, n))
        alarms += paired_difference(first.tolist(), second.tolist()).p < 0.05
    assert 0.05 - 0.03 <= alarms / trials <= 0.05 + 0.02


def test_width_is_that_of_the_normal_approximation() -> None:
    x = draws(2000)
    interval = mean_interval(x.tolist())
    error = x.std() / np.sqrt(len(x))
    assert interval.value == pytest.approx(x.mean())
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert mean_interval(x.tolist(), level=0.68).high - x.mean() == pytest.approx(error, rel=0.06)


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
        assert (result.p < 0.05) == (result.low > 0 or result.high < 0)


def test_no_difference_gives_p_one() -> None:
    result = paired_difference([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert result.p == 1.0 and result.value == result.low == result.high == 0.0


def test_p_is_never_zero() -> None:
    assert paired_difference([0.0] * 5, [1.0] * 5).p == pytest.approx(2 / 2**5)


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

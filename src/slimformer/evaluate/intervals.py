"""Error bars by the bootstrap: resample the examples with replacement, look at the spread of the mean.

    mean of a resample = Σ w_i x_i / Σ w_i over n indices i drawn from 1…n,     interval = its percentiles

Examples (windows, sequences, sentences) are taken as exchangeable; weights are their numbers of tokens. The
percentile interval is a little short for few examples: at n = 20 an interval of 95 % covers about 93 %.
Two models measured on the same examples are compared pair by pair, which removes how hard an example is.

Scores that are no means (F1, correlations, perplexity) are computed anew on every resample: `score_interval` for one
model, `paired_scores` for two. There the test of the difference is approximate randomisation: were the two models
alike, it would not matter whose prediction is whose, so for every example a coin decides whether they change places:

    p = (1 + #{coins : |d*| ≥ |d|}) / (1 + number of tosses)

Two classifiers have an exact test, `mcnemar`: of the examples only one of them gets right, either is as likely to be
the right one if they are alike.

References: Efron, Tibshirani (1993), chapters 13 and 16; Noreen (1989), chapter 2; Yeh (2000); McNemar (1947).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

Vector = NDArray[np.float64]
DRAWS = 2**22  # indices drawn at once: 32 MB


@dataclass(frozen=True)
class Interval:
    """A mean and the interval that holds it at confidence `level`."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Difference:
    """mean(second) − mean(first), its interval, and `p`: how easily resampling turns its sign (two-sided)."""

    value: float
    low: float
    high: float
    level: float
    p: float


def mean_interval(
    values: Sequence[float],
    *,
    weights: Sequence[float] | None = None,
    level: float = 0.95,
    resamples: int = 5000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of the (weighted) mean. Cost O(resamples · n)."""
    x, w = _examples(values, weights)
    _check(level, resamples)
    low, high = _percentiles(_resampled_means(x, w, resamples, seed), level)
    return Interval(float(x @ w / w.sum()), low, high, level)


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    weights: Sequence[float] | None = None,
    level: float = 0.95,
    resamples: int = 5000,
    seed: int = 0,
) -> Difference:
    """Bootstrap of mean(second) − mean(first) over pairs, e.g. the nll of two models window by window.

    p = 2 min(P(d* ≤ 0), P(d* ≥ 0)), at most 1, each probability with one pseudo-count so that it is never 0.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values cannot be paired; use the same examples for both")
    x, w = _examples(np.subtract(second, first, dtype=np.float64).tolist(), weights)
    _check(level, resamples)
    means = _resampled_means(x, w, resamples, seed)
    low, high = _percentiles(means, level)
    fewer = int(min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0)))
    return Difference(float(x @ w / w.sum()), low, high, level, min(1.0, 2 * (fewer + 1) / (resamples + 1)))


def score_interval(
    score: Callable[[Vector, Vector], float],
    predictions: Vector,
    golds: Vector,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of any score. Cost: `resamples` scores."""
    if len(predictions) != len(golds):
        raise ValueError(f"{len(predictions)} predictions and {len(golds)} golds cannot be paired")
    if len(golds) < 2:
        raise ValueError(f"an interval needs at least 2 examples, not {len(golds)}")
    _check(level, resamples)
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(len(golds), size=len(golds)) for _ in range(resamples))
    found = np.array([score(predictions[index], golds[index]) for index in drawn])
    return Interval(score(predictions, golds), *_percentiles(found, level), level)


def mcnemar(first_right: NDArray[np.bool_], second_right: NDArray[np.bool_]) -> float:
    """Two-sided exact p that both classifiers are right equally often, from the examples only one gets right."""
    only_first = int((first_right & ~second_right).sum())
    only_second = int((second_right & ~first_right).sum())
    total = only_first + only_second
    return float(binomtest(only_first, total).pvalue) if total else 1.0


@dataclass(frozen=True)
class Paired:
    """A score of two models on the same examples: both with intervals, second − first, and second / first.

    There is no ratio where the interval of the first reaches 0: it would be of anything to nothing.
    """

    first: Interval
    second: Interval
    difference: Difference
    ratio: Interval | None


def paired_scores(
    score: Callable[[Vector, Vector], float],
    first: Vector,
    second: Vector,
    golds: Vector,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Paired:
    """Bootstrap of any score, and the randomisation test of the difference. Cost: 4 · resamples scores."""
    if not len(first) == len(second) == len(golds):
        raise ValueError(f"{len(first)}, {len(second)} and {len(golds)} values cannot be paired; use the same examples")
    if len(golds) < 2:
        raise ValueError(f"an interval needs at least 2 examples, not {len(golds)}")
    _check(level, resamples)
    generator = np.random.default_rng(seed)
    both = np.empty((resamples, 2))
    for i in range(resamples):
        index = generator.integers(len(golds), size=len(golds))
        both[i] = score(first[index], golds[index]), score(second[index], golds[index])
    a, b = score(first, golds), score(second, golds)
    p = _randomised(score, first, second, golds, abs(b - a), resamples, generator)
    above = Interval(a, *_percentiles(both[:, 0], level), level)
    return Paired(
        above,
        Interval(b, *_percentiles(both[:, 1], level), level),
        Difference(b - a, *_percentiles(both[:, 1] - both[:, 0], level), level, p),
        _ratio(above, b, both) if a > 0 and above.low > 0 else None,
    )


def _ratio(first: Interval, second: float, both: NDArray[np.float64]) -> Interval:
    """second / first by its percentiles over the resamples in which the first is positive: all but a few of them."""
    positive = both[both[:, 0] > 0]
    return Interval(second / first.value, *_percentiles(positive[:, 1] / positive[:, 0], first.level), first.level)


def _randomised(
    score: Callable[[Vector, Vector], float], first: Vector, second: Vector, golds: Vector, gap: float, tosses: int,
    generator: np.random.Generator,
) -> float:  # fmt: skip
    """Two-sided p of a gap when predictions may change places example by example."""
    as_far = 0
    for _ in range(tosses):
        kept = generator.random(len(golds)) < 0.5
        a, b = np.where(kept, first, second), np.where(kept, second, first)
        # a hair of tolerance: the same sum in another order must not count as closer
        as_far += abs(score(b, golds) - score(a, golds)) >= gap * (1 - 1e-9)
    return (1 + as_far) / (1 + tosses)


def _examples(values: Sequence[float], weights: Sequence[float] | None) -> tuple[Vector, Vector]:
    x = np.asarray(values, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    if len(x) < 2:
        raise ValueError(f"an interval needs at least 2 examples, not {len(x)}")
    if not np.isfinite(x).all():
        raise ValueError("an interval needs finite values")
    if w.shape != x.shape or not (w > 0).all():
        raise ValueError(f"{len(x)} values need as many positive weights")
    return x, w


def _check(level: float, resamples: int) -> None:
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level {level} must lie between 0 and 1, and resamples {resamples} be at least 1")


def _resampled_means(x: Vector, w: Vector, resamples: int, seed: int) -> Vector:
    generator = np.random.default_rng(seed)
    at_once = max(1, DRAWS // len(x))
    means = []
    for start in range(0, resamples, at_once):
        index = generator.integers(len(x), size=(min(at_once, resamples - start), len(x)))
        means.append((w * x)[index].sum(1) / w[index].sum(1))
    return np.concatenate(means)


def _percentiles(means: Vector, level: float) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

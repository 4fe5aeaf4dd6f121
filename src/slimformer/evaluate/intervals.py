"""Error bars: how far a number measured on some documents may be from that of all documents of their kind.

Means. Documents i have values x_i and weights w_i (their numbers of tokens), h_i = w_i / Σ w. Documents are independent
draws; tokens and windows of one document are not. With the residuals r_i = x_i − x̄ of the weighted mean x̄ = Σ h_i x_i

    error² = Σ h_i² r_i² / (1 − h_i),        x̄ ± t · error

which is unbiased for values whose variance falls with their weight. t has the degrees of freedom of the error: n − 1
for equally long documents, about one where one document outweighs all others (Bell, McCaffrey 2002). Where residuals
are skewed (a few documents suffer most), t is symmetric and the truth is not: the interval is then widened on the long
side by the transformation of Hall (1992), with k = γ / √n from twice the skewness γ of the sample, because few draws
show too little of a tail:

    g(T) = T + k (T² / 3 + 1 / 6) + k² T³ / 27,        bounds where g((x̄ − x) / error) = ± t

Quantities that cannot be negative (KL, 1 − cosine) are bounded on a logarithmic scale. Above, their tail is long even
where a sample shows none of it, so there γ is that of the sample, but min(3, n / 12, 300 / n) at least: a sample
without the rare documents that suffer most has both too small a mean and too small an error. Few documents need less of
it, because their t is wide already; hundreds show their tail themselves. Below, the γ of the sample draws the bound
closer. Shares (agreement) have the interval of Agresti and Coull with the number of examples that would have the same
error, and where they are of the positions of documents at least that of a mean, since documents are skewed. Differences
of two shares of examples (accuracy) have the interval of Tango's score test of pairs (1998). Where documents hold
several examples, half an example more is counted for either side, so that no discordant pair does not mean no doubt.
Where a few pairs at most are expected to differ, outcomes are so few that no interval can cover 95 % at every rate;
this one then covers more.
How often all of them cover is measured in benchmarks/coverage.py.

Two models measured on the same documents are compared pair by pair, which removes how hard a document is.

Scores that are no means (F1, correlations) are computed anew on every resample of the examples: `score_interval` for
one model, `paired_scores` for two. There the test of the difference is approximate randomisation: were the two models
alike, it would not matter whose prediction is whose, so for every example a coin decides whether they change places:

    p = (1 + #{coins : |d*| ≥ |d|}) / (1 + number of tosses)

Two classifiers have an exact test, `mcnemar`: of the examples only one of them gets right, either is as likely to be
the right one if they are alike.

References: Bell, McCaffrey (2002); Hall (1992), JRSS B 54; Efron, Tibshirani (1993), chapter 13; Noreen (1989),
chapter 2; Agresti, Coull (1998); Korn, Graubard (1998); Agresti, Min (2005); McNemar (1947).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binomtest, norm
from scipy.stats import t as student

Vector = NDArray[np.float64]
HALF = 0.5  # of an example, added to either side of a difference of shares
LONG_SIDE = 2.0  # times the skewness of the sample; by simulation, see benchmarks/coverage.py
WIDEST = 0.85  # k · t at most: the long side grows by no more than 70 %, and the transformation stays far from its end
LONG_TAIL, FEW, MANY, WIDER = 3.0, 1 / 12, 300, 0.93  # of what is never negative: γ at least, and k · t at most


@dataclass(frozen=True)
class Interval:
    """A mean and the interval that holds it at confidence `level`."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Difference:
    """mean(second) − mean(first), its interval, and `p`: how easily chance makes such a difference (two-sided)."""

    value: float
    low: float
    high: float
    level: float
    p: float


@dataclass(frozen=True)
class _Estimate:
    """A weighted mean, its standard error, the degrees of freedom of the error, and γ of its residuals."""

    value: float
    error: float
    freedom: float
    skewness: float
    documents: int

    def k(self, skewness: float, widest: float) -> float:
        limit = widest / student.ppf(0.975, self.freedom)
        return float(np.clip(skewness / np.sqrt(self.documents), -limit, limit))

    def bounds(self, level: float) -> tuple[float, float]:
        t, k = self.quantile(level), self.k(LONG_SIDE * self.skewness, WIDEST)
        below, above = (self.error * _inverse_hall(end, k) for end in (t, -t))
        return self.value - max(t * self.error, below), self.value + max(t * self.error, -above)

    def quantile(self, level: float) -> float:
        return float(student.ppf((1 + level) / 2, self.freedom))

    def p(self) -> float:
        if self.value == 0:
            return 1.0
        least = 2.0 ** (1 - min(self.documents, 1000))  # all signs alike: as rare as that, not impossible
        if self.error == 0:
            return least
        T = self.value / self.error
        closest = min(abs(T), abs(_hall(T, self.k(LONG_SIDE * self.skewness, WIDEST))))
        return float(min(1.0, max(least, 2 * student.sf(closest, self.freedom))))


def mean_interval(values: Sequence[float], *, weights: Sequence[float] | None = None, level: float = 0.95) -> Interval:
    """Interval of the (weighted) mean of independent documents. Cost O(n)."""
    estimate = _estimate(*_examples(values, weights, level))
    return Interval(estimate.value, *estimate.bounds(level), level)


def positive_interval(
    values: Sequence[float], *, weights: Sequence[float] | None = None, level: float = 0.95
) -> Interval:
    """The same for values that are never negative: no bound is."""
    return _positive(_estimate(*_examples(values, weights, level)), level)


def share_interval(values: Sequence[float], *, weights: Sequence[float] | None = None, level: float = 0.95) -> Interval:
    """The same for shares between 0 and 1: of examples (0 or 1 each), or of the positions of each document."""
    x, w = _examples(values, weights, level)
    estimate = _estimate(x, w)
    p, t = estimate.value, estimate.quantile(level)
    variance = p * (1 - p)
    # examples that would have this error; documents all alike say no more than as many examples
    n = variance / estimate.error**2 if variance > 0 and estimate.error > 0 else len(x)
    most = max(float(w.sum()), len(x))
    n = float(np.clip(n, 1, most * (t / student.ppf((1 + level) / 2, most)) ** 2))
    centre = (p * n + t**2 / 2) / (n + t**2)
    half = t * np.sqrt(centre * (1 - centre) / (n + t**2))
    ends = [float(centre - half), float(centre + half)]
    if not np.isin(x, (0.0, 1.0)).all():
        ends += estimate.bounds(level)
    return Interval(p, max(0.0, min(p, *ends)), min(1.0, max(p, *ends)), level)


def smooth_interval(
    value: float, influence: Sequence[float], *, weights: Sequence[float] | None = None, level: float = 0.95,
    positive: bool = False,
) -> Interval:  # fmt: skip
    """Of a number that is no mean but a smooth function of means, from the influence of each document on it."""
    estimate = replace(_estimate(*_examples(influence, weights, level)), value=value)
    return _positive(estimate, level) if positive else Interval(value, *estimate.bounds(level), level)


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, weights: Sequence[float] | None = None, level: float = 0.95
) -> Difference:
    """mean(second) − mean(first) over pairs, e.g. the nll of two models document by document; p is that of t."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values cannot be paired; use the same examples for both")
    estimate = _estimate(*_examples(np.subtract(second, first, dtype=np.float64).tolist(), weights, level))
    return Difference(estimate.value, *estimate.bounds(level), level, estimate.p())


def paired_shares(
    first: Sequence[float], second: Sequence[float], *, weights: Sequence[float] | None = None, level: float = 0.95
) -> Interval:
    """mean(second) − mean(first) of examples that are 0 or 1, or of documents of some of them."""
    gap, w = _examples(np.subtract(second, first, dtype=np.float64).tolist(), weights, level)
    value = float(gap @ w / w.sum())
    if (w == w[0]).all() and np.isin(first, (0.0, 1.0)).all() and np.isin(second, (0.0, 1.0)).all():
        return Interval(value, *_tango(int((gap > 0).sum()), int((gap < 0).sum()), len(gap), level), level)
    low, high = _estimate(np.append(gap, [1.0, -1.0]), np.append(w, [HALF, HALF])).bounds(level)
    return Interval(value, max(-1.0, min(low, value)), min(1.0, max(high, value)), level)


def _tango(better: int, worse: int, n: int, level: float) -> tuple[float, float]:
    """The differences D that the score test of n pairs does not reject (Tango 1998).

        (better − worse − n D) / √(n (2 q + D (1 − D))) = ± z

    where q is the likeliest share of pairs that got worse, were the difference D.
    """
    z, value = float(norm.ppf((1 + level) / 2)), (better - worse) / n

    def score(D: float) -> float:
        b = (2 * n - better + worse) * D - better - worse
        q = (np.sqrt(max(b**2 + 8 * n * worse * D * (1 - D), 0.0)) - b) / (4 * n)
        spread = n * (2 * q + D * (1 - D))
        return float((better - worse - n * D) / np.sqrt(max(spread, 1e-300)))

    low = -1.0 if worse == n else float(brentq(lambda D: score(D) - z, -1.0, value))
    high = 1.0 if better == n else float(brentq(lambda D: score(D) + z, value, 1.0))
    return min(low, value), max(high, value)


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
    scores = np.array([score(predictions[index], golds[index]) for index in drawn])
    return Interval(score(predictions, golds), *_percentiles(scores, level), level)


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
    resamples: int = 2000,
    seed: int = 0,
) -> Paired:
    """Bootstrap of any score (95 % intervals), and the randomisation test of the difference. Cost: 4 · resamples
    scores."""
    level = 0.95
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
    p = _randomised(score, first, second, golds, resamples, generator)
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
    score: Callable[[Vector, Vector], float], first: Vector, second: Vector, golds: Vector, tosses: int,
    generator: np.random.Generator,
) -> float:  # fmt: skip
    """Two-sided p of the gap between scores when predictions may change places example by example."""
    gap, as_far = abs(score(second, golds) - score(first, golds)), 0
    for _ in range(tosses):
        in_place = generator.random(len(golds)) < 0.5
        a, b = np.where(in_place, first, second), np.where(in_place, second, first)
        # a hair of tolerance: the same sum in another order must not count as closer
        as_far += abs(score(b, golds) - score(a, golds)) >= gap * (1 - 1e-9)
    return (1 + as_far) / (1 + tosses)


def _examples(values: Sequence[float], weights: Sequence[float] | None, level: float) -> tuple[Vector, Vector]:
    x = np.asarray(values, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    if len(x) < 2:
        raise ValueError(f"an interval needs at least 2 examples, not {len(x)}")
    if not np.isfinite(x).all():
        raise ValueError("an interval needs finite values")
    if w.shape != x.shape or not (w > 0).all():
        raise ValueError(f"{len(x)} values need as many positive weights")
    if not 0 < level < 1:
        raise ValueError(f"level {level} must lie between 0 and 1")
    return x, w


def _estimate(x: Vector, w: Vector) -> _Estimate:
    """The weighted mean of independent documents, and what is known of its error."""
    h, n = w / w.sum(), len(x)
    value = float(h @ x)
    r = x - value
    r[np.abs(r) <= 4 * np.finfo(np.float64).eps * abs(value)] = 0.0  # rounding of the mean of equal values
    error = float(np.sqrt((_leverage(h) * r**2).sum()))
    u = h * r
    size = float(np.sqrt((u**2).mean()))
    skewness = float((u**3).mean()) / size**3 if size > 0 else 0.0
    return _Estimate(value, error, _freedom(h), skewness, n)


def _leverage(h: Vector) -> Vector:
    return h**2 / np.maximum(1 - h, 1e-12)


def _freedom(h: Vector) -> float:
    """Degrees of freedom of Σ a_i r_i², a = h² / (1 − h), for values whose variance falls with their weight:
    tr(M)² / tr(M²) of M_ij = √a_i √a_j (δ_ij / h_i − 1). Equal weights: n − 1."""
    a = _leverage(h)
    return float(1 / (h @ h + a.sum() ** 2 - a @ a))


def _positive(estimate: _Estimate, level: float) -> Interval:
    t, value, error = estimate.quantile(level), estimate.value, estimate.error
    least = min(LONG_TAIL, FEW * estimate.documents, MANY / estimate.documents)
    high = value - error * _inverse_hall(-t, estimate.k(max(estimate.skewness, least), WIDER))
    if value <= 0:
        return Interval(value, min(0.0, value), high, level)
    factor = float(np.exp(min(t * error / value, 700.0)))
    low = value - error * _inverse_hall(t, estimate.k(max(estimate.skewness, 0.0), WIDER))
    return Interval(value, max(low, value / factor), max(high, value * factor), level)


def _hall(T: float, k: float) -> float:
    return T + k * (T**2 / 3 + 1 / 6) + k**2 * T**3 / 27


def _inverse_hall(g: float, k: float) -> float:
    if abs(k) < 1e-6:
        return g
    return float(3 / k * (np.cbrt(1 + k * (g - k / 6)) - 1))


def _check(level: float, resamples: int) -> None:
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level {level} must lie between 0 and 1, and resamples {resamples} be at least 1")


def _percentiles(means: Vector, level: float) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

"""How good predictions are, with intervals: accuracy, F1, Spearman, calibration, and whether two classifiers differ.

    F1 = 2 TP / (2 TP + FP + FN), macro: mean over classes      ECE = Σ_bins (n_b / n) |accuracy_b − confidence_b|

Intervals are percentiles of the bootstrap over examples. Two classifiers on the same examples are compared by the exact
test of McNemar: of the examples only one of them gets right, each is as likely to be right under the null hypothesis.

References: Efron, Tibshirani (1993); McNemar (1947); Guo et al. (2017) for the calibration error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from slimformer.evaluate.intervals import Interval, mean_interval

BINS = 15
RESAMPLES = 1000
Array = NDArray[Any]


def confusion(truth: Iterable[Any], predicted: Iterable[Any], labels: Sequence[Any]) -> list[list[int]]:
    """Rows are true labels, columns predicted ones, both in the order of `labels`."""
    index = {label: i for i, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)), int)
    np.add.at(table, ([index[t] for t in truth], [index[p] for p in predicted]), 1)
    return [[int(n) for n in row] for row in table]


def f1_scores(truth: Array, predicted: Array, labels: Sequence[Any]) -> list[float]:
    """F1 of each class; 0 where a class is neither there nor predicted."""
    out = []
    for label in labels:
        hits = int(((truth == label) & (predicted == label)).sum())
        total = int((truth == label).sum() + (predicted == label).sum())
        out.append(2 * hits / total if total else 0.0)
    return out


def calibration_error(probabilities: Array, right: Array, bins: int = BINS) -> float:
    """Expected calibration error of the largest probability, bins of equal width."""
    sure = probabilities.max(1)
    place = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = [abs(right[place == b].mean() - sure[place == b].mean()) * (place == b).mean() for b in np.unique(place)]
    return float(sum(gaps))


def classification_scores(
    truth: Array, predicted: Array, probabilities: Array, labels: Sequence[Any]
) -> dict[str, Any]:
    """Accuracy and macro F1 with intervals, F1 of each class, calibration error, confusion matrix."""
    known = [*labels, *sorted(set(truth.tolist()) - set(labels), key=str)]
    right = (truth == predicted).astype(float)
    found: dict[str, Any] = {"examples": len(truth)}
    if len(truth) > 1:
        found["accuracy"] = vars(mean_interval(right.tolist()))
        found["macro_f1"] = vars(
            resampled(lambda i: float(np.mean(f1_scores(truth[i], predicted[i], known))), len(truth))
        )
    else:
        found["accuracy"] = {"value": float(right.mean())}
    f1 = f1_scores(truth, predicted, known)
    found["f1"] = {str(label): value for label, value in zip(known, f1, strict=True)}
    found["calibration_error"] = calibration_error(probabilities, right)
    found["confusion"] = {"labels": [str(label) for label in known], "counts": confusion(truth, predicted, known)}
    return found


def regression_scores(truth: Array, predicted: Array) -> dict[str, Any]:
    """Spearman and Pearson correlation with intervals, and the root mean squared error."""
    found: dict[str, Any] = {"examples": len(truth)}
    if len(truth) > 2:
        found["spearman"] = vars(resampled(lambda i: spearman(truth[i], predicted[i]), len(truth)))
        found["pearson"] = vars(resampled(lambda i: pearson(truth[i], predicted[i]), len(truth)))
    found["rmse"] = float(np.sqrt(np.mean((truth - predicted) ** 2)))
    return found


def spearman(x: Array, y: Array) -> float:
    """Correlation of ranks; 0 where one side is constant."""
    return pearson(stats.rankdata(x), stats.rankdata(y))


def pearson(x: Array, y: Array) -> float:
    """Correlation; 0 where one side is constant."""
    a, b = x - x.mean(), y - y.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm else 0.0


def resampled(
    statistic: Callable[[Array], float], n: int, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The statistic of all n examples, and percentiles of it over resamples; it is given indices."""
    generator = np.random.default_rng(seed)
    values = [statistic(generator.integers(n, size=n)) for _ in range(resamples)]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(statistic(np.arange(n)), float(low), float(high), level)


def mcnemar(first_right: Array, second_right: Array) -> float:
    """Two-sided exact p that both classifiers are right equally often, from the examples only one gets right."""
    first, second = np.asarray(first_right, bool), np.asarray(second_right, bool)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    total = only_first + only_second
    return float(stats.binomtest(only_first, total).pvalue) if total else 1.0

"""How good predictions are: scores with intervals, calibration error, confusion matrix.

    macro F1 = mean over classes of F1      ECE = Σ_bins (n_b / n) |accuracy_b − confidence_b|

References: Guo et al. (2017) for the calibration error. The scores themselves are in `scores`, the intervals in
`intervals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimformer.evaluate.intervals import score_interval, share_interval
from slimformer.evaluate.scores import Vector, f1_score, pearson, spearman

BINS = 15
Array = NDArray[Any]


def confusion(truth: Iterable[Any], predicted: Iterable[Any], labels: Sequence[Any]) -> list[list[int]]:
    """Rows are true labels, columns predicted ones, both in the order of `labels`."""
    index = {label: i for i, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)), int)
    np.add.at(table, ([index[t] for t in truth], [index[p] for p in predicted]), 1)
    return [[int(n) for n in row] for row in table]


def f1_of_classes(predicted: Array, truth: Array, labels: Sequence[Any]) -> list[float]:
    """F1 of each class against the rest; 0 where a class is neither there nor predicted."""
    return [f1_score((predicted == label).astype(float), (truth == label).astype(float)) for label in labels]


def macro_f1(predicted: Vector, truth: Vector) -> float:
    """Mean of F1 over the classes that are there or predicted."""
    return float(np.mean(f1_of_classes(predicted, truth, np.union1d(predicted, truth).tolist())))


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
    codes = {label: float(i) for i, label in enumerate(known)}
    y, p = (np.array([codes[label] for label in side.tolist()]) for side in (truth, predicted))
    scores: dict[str, Any] = {"examples": len(truth)}
    if len(truth) > 1:
        scores["accuracy"] = vars(share_interval(right.tolist()))
        scores["macro_f1"] = vars(score_interval(macro_f1, p, y))
    else:
        scores["accuracy"] = {"value": float(right.mean())}
    f1 = f1_of_classes(p, y, range(len(known)))
    scores["f1"] = {str(label): value for label, value in zip(known, f1, strict=True)}
    scores["calibration_error"] = calibration_error(probabilities, right)
    scores["confusion"] = {"labels": [str(label) for label in known], "counts": confusion(truth, predicted, known)}
    return scores


def regression_scores(truth: Array, predicted: Array) -> dict[str, Any]:
    """Spearman and Pearson correlation with intervals, and the root mean squared error."""
    scores: dict[str, Any] = {"examples": len(truth)}
    if len(truth) > 2:
        scores["spearman"] = vars(score_interval(spearman, predicted, truth))
        scores["pearson"] = vars(score_interval(pearson, predicted, truth))
    scores["rmse"] = float(np.sqrt(np.mean((truth - predicted) ** 2)))
    return scores

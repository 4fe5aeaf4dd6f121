"""Scores of predictions against golds, on all examples or on any resample of them.

    accuracy   (1/n) Σ [ŷ = y]
    F1         2 TP / (2 TP + FP + FN) of class 1; 0 if there is neither such a gold nor such a prediction
    Pearson    cov(ŷ, y) / (σ_ŷ σ_y),     Spearman   Pearson of the ranks (ties share the mean rank)
    perplexity exp(Σ w nll / Σ w)

They are the definitions GLUE uses (Wang et al. 2019), equal to those of scikit-learn and scipy; written out here
because an interval takes thousands of them. Every function takes predictions and golds as vectors of equal length.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Vector = NDArray[np.float64]
Score = Callable[[Vector, Vector], float]


def accuracy_score(predictions: Vector, golds: Vector) -> float:
    """Share of equal entries."""
    return float(np.mean(predictions == golds))


def f1_score(predictions: Vector, golds: Vector) -> float:
    """F1 of class 1."""
    predicted, meant = predictions == 1, golds == 1
    both = int(np.count_nonzero(predicted & meant))
    total = int(np.count_nonzero(predicted)) + int(np.count_nonzero(meant))
    return 2 * both / total if total else 0.0


def pearson(predictions: Vector, golds: Vector) -> float:
    """Linear correlation; 0 where a side is constant, so that a collapsed model has a number."""
    x, y = predictions - predictions.mean(), golds - golds.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else 0.0


def spearman(predictions: Vector, golds: Vector) -> float:
    """Correlation of ranks."""
    return pearson(rankdata(predictions), rankdata(golds))


def mean_score(values: Vector, weights: Vector) -> float:
    """Mean of scores that every example has by itself (exact match, F1 of an answer), weighted."""
    return float(values @ weights / weights.sum())


def perplexity_score(nll: Vector, tokens: Vector) -> float:
    """exp of the mean nll of windows, weighted by their tokens."""
    return float(np.exp(nll @ tokens / tokens.sum()))

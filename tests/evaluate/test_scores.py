"""Scores agree with their definitions and with scikit-learn; intervals hold them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from slimformer.evaluate.scores import (
    calibration_error,
    classification_scores,
    confusion,
    f1_scores,
    mcnemar,
    regression_scores,
    spearman,
)


def answers(n=200, *, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    return truth, np.where(rng.random(n) < 0.7, truth, rng.integers(0, 3, n))


def test_f1_and_confusion_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is an extra")
    truth, predicted = answers()
    np.testing.assert_allclose(f1_scores(truth, predicted, [0, 1, 2]), metrics.f1_score(truth, predicted, average=None))
    assert confusion(truth, predicted, [0, 1, 2]) == metrics.confusion_matrix(truth, predicted).tolist()


def test_a_classifier_that_is_as_sure_as_right_has_no_calibration_error():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 20_000)
    right = rng.random(20_000) < p
    assert calibration_error(np.stack([p, 1 - p], 1), right) < 0.02
    assert calibration_error(np.stack([np.ones(10), np.zeros(10)], 1), np.zeros(10)) == 1


def test_labels_nobody_was_taught_are_in_the_table():
    truth, predicted = np.array(["a", "b", "new"]), np.array(["a", "a", "b"])
    found = classification_scores(truth, predicted, np.full((3, 2), 0.5), ["a", "b"])
    assert found["confusion"] == {"labels": ["a", "b", "new"], "counts": [[1, 0, 0], [1, 0, 0], [0, 1, 0]]}
    assert found["accuracy"]["value"] == pytest.approx(1 / 3)
    assert found["accuracy"]["low"] <= 1 / 3 <= found["accuracy"]["high"]


def test_correlations_are_those_of_scipy_and_never_nan():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, 80).astype(float)
    y = x + rng.standard_normal(80)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    found = regression_scores(x, y)
    assert found["spearman"]["low"] < found["spearman"]["value"] < found["spearman"]["high"]
    assert regression_scores(x, np.ones(80))["spearman"]["value"] == 0


def test_mcnemar_counts_only_where_the_two_differ():
    same = np.arange(50) % 3 == 0
    assert mcnemar(same, same) == 1
    better = same.copy()
    better[np.flatnonzero(~same)[:12]] = True
    assert mcnemar(same, better) == pytest.approx(2 * 0.5**12)

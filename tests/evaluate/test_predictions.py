"""What is said of predictions agrees with its definition and with scikit-learn; intervals hold it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from slimformer.evaluate.intervals import mcnemar, score_interval
from slimformer.evaluate.predictions import (
    calibration_error,
    classification_scores,
    confusion,
    f1_of_classes,
    macro_f1,
    regression_scores,
)
from slimformer.evaluate.scores import accuracy_score


def answers(n=200, *, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    return truth, np.where(rng.random(n) < 0.7, truth, rng.integers(0, 3, n))


def test_f1_and_confusion_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is an extra")
    truth, predicted = answers()
    each = metrics.f1_score(truth, predicted, average=None)
    np.testing.assert_allclose(f1_of_classes(predicted, truth, [0, 1, 2]), each)
    assert macro_f1(predicted, truth) == pytest.approx(each.mean())
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
    found = regression_scores(x, y)
    assert found["spearman"]["value"] == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found["spearman"]["low"] < found["spearman"]["value"] < found["spearman"]["high"]
    assert regression_scores(x, np.ones(80))["spearman"]["value"] == 0


def test_mcnemar_counts_only_where_the_two_differ():
    same = np.arange(50) % 3 == 0
    assert mcnemar(same, same) == 1
    better = same.copy()
    better[np.flatnonzero(~same)[:12]] = True
    assert mcnemar(same, better) == pytest.approx(2 * 0.5**12)


def test_an_interval_of_a_score_covers_it_about_as_often_as_it_says():
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        right = (rng.random(120) < 0.8).astype(float)
        found = score_interval(accuracy_score, right, np.ones(120), resamples=200, seed=seed)
        covered += found.low <= 0.8 <= found.high
    assert 51 <= covered <= 60  # 57 expected


def test_what_has_no_interval_is_explained():
    with pytest.raises(ValueError, match="at least 2"):
        score_interval(accuracy_score, np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="paired"):
        score_interval(accuracy_score, np.ones(3), np.ones(2))

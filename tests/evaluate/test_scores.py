"""Scores equal those of scikit-learn and scipy; the paired test finds what is there and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from slimformer.evaluate.intervals import paired_scores
from slimformer.evaluate.scores import accuracy_score, f1_score, mean_score, pearson, perplexity_score, spearman


def drawn(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(2, size=n).astype(float), draw.integers(2, size=n).astype(float)


@pytest.mark.parametrize("seed", range(3))
def test_classes_score_as_in_scikit_learn(seed):
    said, golds = drawn(seed=seed)
    assert accuracy_score(said, golds) == pytest.approx(metrics.accuracy_score(golds, said))
    assert f1_score(said, golds) == pytest.approx(metrics.f1_score(golds, said))


@pytest.mark.parametrize("seed", range(3))
def test_correlations_score_as_in_scipy(seed):
    draw = np.random.default_rng(seed)
    golds = np.round(draw.uniform(0, 5, 100), 1)  # STS-B has many ties
    said = golds + draw.normal(size=100)
    assert pearson(said, golds) == pytest.approx(stats.pearsonr(said, golds).statistic)
    assert spearman(said, golds) == pytest.approx(stats.spearmanr(said, golds).statistic)


def test_degenerate_predictions_have_a_number():
    golds = np.array([0.0, 1, 1])
    assert f1_score(np.zeros(3), golds) == f1_score(np.zeros(3), np.zeros(3)) == 0
    assert pearson(np.ones(3), golds) == spearman(np.ones(3), golds) == 0


def test_by_hand():
    said, golds = np.array([1.0, 1, 1, 0, 0]), np.array([1.0, 0, 1, 1, 0])
    assert accuracy_score(said, golds) == pytest.approx(3 / 5)
    assert f1_score(said, golds) == pytest.approx(2 / 3)  # 2 true, 1 false, 1 missed
    assert mean_score(np.array([1.0, 0.0]), np.array([3.0, 1.0])) == pytest.approx(0.75)
    assert perplexity_score(np.log([2.0, 8.0]), np.ones(2)) == pytest.approx(4)


def test_equal_models_do_not_differ():
    said, golds = drawn()
    found = paired_scores(f1_score, said, said, golds, resamples=100)
    assert found.difference.value == found.difference.low == found.difference.high == 0
    assert found.difference.p == 1
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == (1, 1, 1)


def test_a_worse_model_is_found_and_recovery_is_the_ratio():
    _, golds = drawn(400)
    draw = np.random.default_rng(1)
    good, bad = (np.where(draw.random(400) < wrong, 1 - golds, golds) for wrong in (0.05, 0.25))
    found = paired_scores(accuracy_score, good, bad, golds, resamples=400)
    assert found.difference.high < 0
    assert found.difference.p < 0.01
    assert found.ratio.value == pytest.approx(found.second.value / found.first.value)
    assert found.first.low <= found.first.value <= found.first.high
    swapped = paired_scores(accuracy_score, bad, good, golds, resamples=400)
    assert swapped.difference.value == pytest.approx(-found.difference.value)


def test_the_test_keeps_its_level():
    """Two models that err alike: p below 0.1 in about a tenth of the cases, not in most."""
    low = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        golds = draw.integers(2, size=60).astype(float)
        one, other = (np.where(draw.random(60) < 0.2, 1 - golds, golds) for _ in range(2))
        low += paired_scores(accuracy_score, one, other, golds, resamples=99, seed=seed).difference.p < 0.1
    assert low <= 10  # 3.7 expected at most; 10 or more has a probability of 0.3 %


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(ValueError, match="paired"):
        paired_scores(accuracy_score, np.ones(3), np.ones(2), np.ones(3))
    with pytest.raises(ValueError, match="at least 2"):
        paired_scores(accuracy_score, np.ones(1), np.ones(1), np.ones(1))

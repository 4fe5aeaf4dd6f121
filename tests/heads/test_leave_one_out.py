"""Leave-one-out by formula is leave-one-out by force; priors, weights and shrinkage do what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from labelled import blobs, lines

from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.class_moments import ClassMoments, TargetMoments, balanced
from slimformer.heads.discriminant import Within, discriminant, ledoit_wolf, left_out_scores, within
from slimformer.heads.kept_rows import KeptRows
from slimformer.heads.ridge import centred, damping, left_out_predictions
from slimformer.heads.temperature import log_loss, temperature


def class_moments(X, y, w=None, omega=None):
    rows = torch.as_tensor(X)
    w = torch.ones(len(rows), dtype=torch.float64) if w is None else torch.as_tensor(w, dtype=torch.float64)
    found = ClassMoments.of(rows, list(y), w, apart=omega is not None)
    return found if omega is None else found.weighted(omega)


def by_force(X, y, i, gamma, scale, omega):
    """Scores of row i by everything else, straight from the definition, in coordinates of the given scale."""
    keep = np.arange(len(X)) != i
    Z, labels = X[keep] / scale, y[keep]
    classes = np.unique(y)
    weights = omega[labels]
    means = {c: Z[labels == c].mean(0) for c in classes if (labels == c).any()}
    S = sum((weights[labels == c].sum() * np.cov(Z[labels == c].T, bias=True)) for c in means)
    S = S / (weights.sum() - len(means))
    S = (1 - gamma) * S + gamma * np.trace(S) / len(S) * np.eye(len(S))
    scores = []
    for c in classes:
        if c not in means:
            scores.append(-np.inf)
            continue
        r = X[i] / scale - means[c]
        scores.append(np.log(weights[labels == c].sum() / weights.sum()) - r @ np.linalg.solve(S, r) / 2)
    return np.array(scores)


@pytest.mark.parametrize("gamma", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_discriminant_scores_without_a_row(gamma, weighted, alone):
    X, y = blobs(30, 4)
    if alone:
        X, y = np.vstack([X, X[:1] + 1]), np.append(y, 3)  # a class of one row
    counts = torch.tensor(np.bincount(y), dtype=torch.float64)
    omega = balanced(counts) if weighted else torch.ones_like(counts)
    found = within(class_moments(X, y, omega=omega))
    c, u = torch.as_tensor(y), torch.ones(len(y), dtype=torch.float64)
    S = left_out_scores(found, found.turned(torch.as_tensor(X)), c, omega[c] * u, gamma, None)
    for i in range(len(X)):
        expected = by_force(X, y, i, gamma, found.scale.numpy(), omega.numpy())
        np.testing.assert_allclose(S[i], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("relative", [1e-6, 0.1, 10.0])
def test_ridge_predictions_without_a_row(relative):
    X, Y = lines()
    rows, targets = torch.as_tensor(X), torch.as_tensor(Y)
    w = torch.ones(len(X), dtype=torch.float64)
    found = centred(TargetMoments.of(rows, targets, w))
    P = left_out_predictions(found, found.turned(rows), targets, w, relative)
    Z, penalty = X / found.scale.numpy(), len(X) * damping(found, relative)
    for i in range(len(X)):
        keep = np.arange(len(X)) != i
        A = np.hstack([Z[keep], np.ones((keep.sum(), 1))])
        ridge = penalty * np.diag([*np.ones(X.shape[1]), 0])
        B = np.linalg.solve(A.T @ A + ridge, A.T @ Y[keep])
        np.testing.assert_allclose(P[i], np.append(Z[i], 1) @ B, rtol=1e-8)


def test_the_path_ends_in_least_squares_and_in_class_means():
    X, y = blobs(400)
    found = within(class_moments(X, y))
    sklearn = pytest.importorskip("sklearn.discriminant_analysis", reason="scikit-learn is an extra")
    theirs = sklearn.LinearDiscriminantAnalysis().fit(X, y)
    head = AnalyticHead(shrinkage=0.0).fit(X, y)
    ours = head._scores(X).softmax(1).numpy()
    np.testing.assert_allclose(ours, theirs.predict_proba(X), atol=5e-3)  # they divide by n, we by n − C
    W, b = discriminant(found, 1.0, torch.zeros(3, dtype=torch.float64))
    Z, M = torch.as_tensor(X) / found.scale, torch.as_tensor(np.stack([X[y == c].mean(0) for c in range(3)]))
    nearest = torch.cdist(Z, M / found.scale).argmin(1)
    assert (torch.as_tensor(X) @ W.mT + b).argmax(1).equal(nearest)
    np.testing.assert_array_equal(AnalyticHead("ncm").fit(X, y).predict(X), nearest)


def test_shrinkage_chosen_by_leaving_out_beats_none_where_rows_are_few():
    means = 0.5 * np.random.default_rng(0).standard_normal((3, 40))
    (X, y), (test, labels) = (
        (means[c] + rng.standard_normal((len(c), 40)), c)
        for rng, c in ((np.random.default_rng(n), np.arange(n) % 3) for n in (60, 2001))
    )
    chosen = AnalyticHead().fit(X, y)
    assert chosen.score(test, labels) > AnalyticHead(shrinkage=0.0).fit(X, y).score(test, labels) + 0.02
    assert abs(chosen.loo_error_ - (1 - chosen.score(test, labels))) < 0.15


def test_ledoit_and_wolf_agree_with_scikit_learn():
    covariance = pytest.importorskip("sklearn.covariance", reason="scikit-learn is an extra")
    X, _ = blobs(80, 6, 1)
    found = within(class_moments(X, np.zeros(len(X), int)))
    Z = found.turned(torch.as_tensor(X))
    ours = ledoit_wolf(found, Z, torch.zeros(len(X), dtype=torch.long))
    assert ours == pytest.approx(covariance.ledoit_wolf_shrinkage(X / found.scale.numpy()), rel=0.05)


def test_priors_move_the_boundary_and_nothing_else():
    X, y = blobs(300)
    plain, uniform = AnalyticHead(shrinkage=0.1).fit(X, y), AnalyticHead(shrinkage=0.1, prior="uniform").fit(X, y)
    np.testing.assert_allclose(plain.coef_, uniform.coef_)
    moved = plain.intercept_ - uniform.intercept_
    np.testing.assert_allclose(moved - moved[0], np.log(np.bincount(y) / np.bincount(y)[0]))
    sure = AnalyticHead(shrinkage=0.1, prior={0: 1e-30, 1: 1.0, 2: 1e-30}).fit(X, y)
    assert (sure.predict(X) == 1).mean() > 0.9


def test_balanced_weights_give_every_class_the_same_say():
    X, y = blobs(400)
    weighted = AnalyticHead("ridge", class_weight="balanced", shrinkage=0.1).fit(X, y)
    w = balanced(torch.tensor(np.bincount(y), dtype=torch.float64)).numpy()[y]
    by_rows = AnalyticHead("ridge", shrinkage=0.1).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(weighted.coef_, by_rows.coef_, rtol=1e-6)


def test_the_temperature_is_the_best_one():
    generator = torch.Generator().manual_seed(0)
    truth = 2.5
    S = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial((truth * S).softmax(1), 1, generator=generator)[:, 0]
    w = torch.ones(len(S), dtype=torch.float64)
    beta = temperature(S, y, w)
    assert beta == pytest.approx(truth, rel=0.1)
    assert all(log_loss(beta * S, y, w) <= log_loss(other * S, y, w) for other in (0.9 * beta, 1.1 * beta))
    assert 0 < temperature(S, S.argmax(1), w) < float("inf")  # all right: sharp, but finite


def test_kept_rows_are_a_fair_sample_whatever_the_order():
    X = torch.arange(4000.0, dtype=torch.float64)[:, None]
    y, w = np.zeros(4000, int), torch.ones(4000, dtype=torch.float64)
    kept = KeptRows.of(X, y, w, 400)
    order = torch.randperm(4000, generator=torch.Generator().manual_seed(1))
    parts = [KeptRows.of(X[part], y[part], w[part], 400) for part in order.split(321)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert set(total.X[:, 0].tolist()) == set(kept.X[:, 0].tolist())
    assert abs(float(kept.X.mean()) - 1999.5) < 4 * 1155 / 400**0.5
    assert set((kept - KeptRows.of(X[:2000], y[:2000], w[:2000], 4000)).X[:, 0].tolist()) == {
        value for value in kept.X[:, 0].tolist() if value >= 2000
    }


def test_a_class_of_nothing_keeps_its_place():
    assert isinstance(within(ClassMoments.zero([0, 1], 3, apart=False)), Within)


def test_rows_that_are_all_right_leave_some_doubt():
    S = torch.tensor([[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64).repeat(10, 1)
    y, w = torch.tensor([0, 1]).repeat(10), torch.ones(20, dtype=torch.float64)
    sure = (temperature(S, y, w) * S).softmax(1).amax(1)
    torch.testing.assert_close(sure, torch.full_like(sure, 21 / 22), rtol=1e-3, atol=0)  # odds of 1 : 21
    wrong = y.clone()
    wrong[0] = 1
    assert float((temperature(S, wrong, w) * S).softmax(1).amax(1).mean()) == pytest.approx(0.95, abs=1e-6)

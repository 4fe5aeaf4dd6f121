"""Newton steps: laws of the penalised loss, agreement with other solvers, rows in any parts, order and amount."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from labelled import blobs

from slimformer.errors import HeadDoesNotFit, RowsUnusable
from slimformer.heads import newton
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.class_moments import ClassMoments
from slimformer.heads.head_file import read_head, write_head

both = pytest.mark.parametrize("exact", [True, False], ids=["curvature", "bound"])


def at_start(X, y, classes):
    """Coordinates, rows to be read, and Θ = 0."""
    rows, t, w = torch.from_numpy(X), torch.from_numpy(y), torch.ones(len(X), dtype=torch.float64)
    z = newton.scaling(ClassMoments.of(rows, y.tolist(), w, apart=False).as_targets())
    return z, lambda: [(rows, t, w)], torch.zeros(classes - 1, X.shape[1] + 1, dtype=torch.float64)


def same(a: AnalyticHead, b: AnalyticHead, tolerance=1e-8) -> None:
    np.testing.assert_allclose(a.coef_, b.coef_, atol=tolerance)
    np.testing.assert_allclose(a.intercept_, b.intercept_, atol=tolerance)
    assert a.solution().beta == pytest.approx(b.solution().beta, rel=1e-6)
    assert a.loo_loss_ == pytest.approx(b.loo_loss_, rel=1e-6)


@both
@pytest.mark.parametrize("far", [0.0, 30.0])
def test_the_penalised_loss_never_rises(exact, far, monkeypatch):
    monkeypatch.setattr(newton, "EXACT", newton.EXACT if exact else 0)
    X, y = blobs(80)
    z, parts, theta = at_start(X, y, 3)
    theta = theta + far * torch.randn(theta.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    end = newton.polish(parts, theta, z, mu=1e-3, steps=12)
    assert len(end.losses) > 3
    assert all(b <= a for a, b in zip(end.losses, end.losses[1:], strict=False))
    assert end.losses[-1] < end.losses[0]


@both
@pytest.mark.parametrize("classes", [2, 3])
def test_at_convergence_it_is_logistic_regression(classes, exact, monkeypatch):
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is an extra")
    monkeypatch.setattr(newton, "EXACT", newton.EXACT if exact else 0)
    X, y = blobs(150, classes=classes)
    head = AnalyticHead("newton", shrinkage=0.02, steps=500).fit(X, y)
    mean, sd = X.mean(0), X.std(0)
    C = (2 if classes == 2 else 1) / (0.02 * len(X))  # two classes: one vector w₂ − w₁, with half of the penalty
    other = linear.LogisticRegression(C=C, tol=1e-10, max_iter=5000).fit((X - mean) / sd, y)
    ours = head.coef_ * sd
    np.testing.assert_allclose(ours[1:] - ours[:1] if classes == 2 else ours, other.coef_, atol=1e-4)
    np.testing.assert_array_equal(head.predict(X), other.predict((X - mean) / sd))


def test_one_step_from_zero_is_least_squares_on_plus_and_minus_one_half():
    X, y = blobs(60, classes=2)
    keep = np.concatenate([np.flatnonzero(y == c)[: min(np.bincount(y))] for c in (0, 1)])
    X, y = X[keep], y[keep]
    z, parts, theta = at_start(X, y, 2)
    delta, _ = newton.step(newton.sums(parts, theta, z), theta, z, mu=0.0)
    w, b = newton.out_of_contrasts(delta, z)
    solved = np.linalg.lstsq(np.hstack([X, np.ones((len(X), 1))]), y - 0.5, rcond=None)[0]
    np.testing.assert_allclose((w[1] - w[0]), 4 * solved[:-1], atol=1e-9)  # 1 / (p (1 − p)) = 4
    np.testing.assert_allclose((b[1] - b[0]), 4 * solved[-1], atol=1e-9)


def test_derivatives_are_those_of_the_loss():
    X, y = blobs(40)
    z, parts, theta = at_start(X, y, 3)
    theta = theta + 0.3
    found, rows = newton.sums(parts, theta, z), z(torch.from_numpy(X))

    def loss(flat):
        scores = rows @ flat.view(2, -1).mT @ newton.contrasts(3).mT
        return torch.nn.functional.cross_entropy(scores, torch.from_numpy(y))

    flat = theta.flatten().requires_grad_()
    assert found.loss == pytest.approx(float(loss(flat.detach())))
    torch.testing.assert_close(found.gradient.flatten(), torch.autograd.grad(loss(flat), flat)[0])
    torch.testing.assert_close(found.curvature, torch.autograd.functional.hessian(loss, flat.detach()))


@pytest.mark.parametrize("how", [{}, {"class_weight": "balanced"}])
def test_order_and_parts_of_the_rows_do_not_matter(how):
    X, y = blobs(200)
    whole = AnalyticHead("newton", **how).fit(X, y)
    order = np.random.default_rng(0).permutation(len(X))
    same(AnalyticHead("newton", **how).fit(X[order], y[order]), whole)
    parts = [(X[part], y[part]) for part in np.array_split(order, 7)]
    head = AnalyticHead("newton", **how)
    for part in parts:
        head.partial_fit(*part)
    same(head.polish(parts[::-1]), whole)
    assert head.n_iter_ > 0


def test_weights_are_repetitions():
    X, y = blobs(80)
    w = np.random.default_rng(0).integers(0, 4, len(X))
    same(AnalyticHead("newton").fit(X, y, sample_weight=w), AnalyticHead("newton").fit(X.repeat(w, 0), y.repeat(w)))


@pytest.mark.parametrize("classes", [2, 3])
def test_left_out_scores_are_those_of_a_fit_without_the_row(classes):
    X, y = blobs(120, classes=classes)
    z, parts, theta = at_start(X, y, classes)
    end = newton.polish(parts, theta, z, mu=0.02, steps=30)
    rows, t, w = parts()[0]
    found = newton.left_out(end, z, rows, t, w, 0.02)
    full = z(rows) @ end.theta.mT @ newton.contrasts(classes).mT
    for i in range(0, 20):
        others = torch.arange(len(rows)) != i
        n = len(rows) - 1
        alone = newton.polish(lambda k=others: [(rows[k], t[k], w[k])], theta, z, mu=0.02 * (n + 1) / n, steps=30)
        exact = z(rows[i : i + 1]) @ alone.theta.mT @ newton.contrasts(classes).mT
        assert (found[i] - exact[0]).norm() <= 0.15 * (full[i] - exact[0]).norm() + 1e-3


@both
def test_separable_classes_stay_finite(exact, monkeypatch):
    monkeypatch.setattr(newton, "EXACT", newton.EXACT if exact else 0)
    X, y = blobs(60, spread=20)
    for rows in (X, np.hstack([X, X, np.full((len(X), 1), 1e3)])):  # copies and a constant make the Gram singular
        head = AnalyticHead("newton").fit(rows, y)
        assert np.isfinite(head.coef_).all()
        assert np.isfinite(head.predict_proba(rows)).all()
        assert head.score(rows, y) == 1


def test_steps_lower_the_loss_and_the_layer_gives_the_probabilities(tmp_path):
    X, y = blobs(300)
    X = X + 0.3 * X**2  # no Gaussian classes
    head, start = AnalyticHead("newton").fit(X, y), AnalyticHead("ridge").fit(X, y)
    assert head.loo_loss_ < start.loo_loss_
    with torch.no_grad():
        found = head.to_linear()(torch.tensor(X, dtype=torch.float32)).softmax(1)
    np.testing.assert_allclose(found, head.predict_proba(X), atol=1e-4)
    write_head(head, tmp_path / "head.safetensors")
    again = read_head(tmp_path / "head.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), head.predict_proba(X))
    assert again.n_iter_ == head.n_iter_


def test_without_the_rows_there_is_the_start_and_it_says_so():
    X, y = blobs()
    head = AnalyticHead("newton").partial_fit(X, y)
    with pytest.warns(UserWarning, match="polish"):
        np.testing.assert_allclose(head.coef_, AnalyticHead("ridge").fit(X, y).coef_)
    assert head.n_iter_ == 0


def test_labels_that_are_still_to_come_are_never_predicted_and_one_class_is_always_right():
    X, y = blobs()
    head = AnalyticHead("newton").partial_fit(X, y, classes=[0, 1, 2, 3]).polish([(X, y)])
    assert (head.predict_proba(X)[:, 3] == 0).all()
    np.testing.assert_allclose(head.coef_[:3], AnalyticHead("newton").fit(X, y).coef_)
    assert (AnalyticHead("newton").fit(X, np.full(len(X), 7)).predict(X) == 7).all()


def test_rows_that_do_not_belong_to_the_head_are_refused():
    X, y = blobs()
    head = AnalyticHead("newton").partial_fit(X, y)
    with pytest.raises(RowsUnusable, match="not an iterator"):
        head.polish(iter([(X, y)]))
    with pytest.raises(HeadDoesNotFit, match="rows that weigh 30"):
        head.polish([(X[:30], y[:30])])
    with pytest.raises(RowsUnusable, match="class 9"):
        head.polish([(X, np.full(len(X), 9))])
    with pytest.raises(HeadDoesNotFit, match="only 'newton'"):
        AnalyticHead().fit(X, y).polish([(X, y)])
    with pytest.raises(RowsUnusable, match="no prior"):
        AnalyticHead("newton", prior="uniform").fit(X, y)


@pytest.mark.slow
def test_the_conventions_of_scikit_learn_hold():
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is an extra")
    checks.check_estimator(AnalyticHead("newton"), on_skip=None)

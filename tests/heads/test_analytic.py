"""The estimator: learning in parts, forgetting, merging, rows that cannot be used, and what it exports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from labelled import blobs, lines

from slimformer.errors import CannotForget, HeadDoesNotFit, RowsUnusable
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.head_file import read_head, write_head

KINDS = [
    {"kind": "lda"},
    {"kind": "lda", "shrinkage": "ledoit-wolf"},
    {"kind": "lda", "class_weight": "balanced"},
    {"kind": "lda", "prior": "uniform"},
    {"kind": "ridge"},
    {"kind": "ridge", "class_weight": "balanced"},
    {"kind": "random", "random_features": 30},
    {"kind": "ncm"},
]
every_kind = pytest.mark.parametrize("how", KINDS, ids=lambda how: "-".join(map(str, how.values())))


def same(a: AnalyticHead, b: AnalyticHead, rtol=1e-7) -> None:
    assert a.shrinkage_ == pytest.approx(b.shrinkage_)
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=rtol, atol=rtol * np.abs(b.coef_).max())
    np.testing.assert_allclose(a.intercept_, b.intercept_, rtol=rtol, atol=rtol * np.abs(b.intercept_).max())
    assert a.solution().beta == pytest.approx(b.solution().beta, rel=1e-6)


@every_kind
def test_parts_and_merges_give_the_head_of_all_rows(how):
    X, y = blobs()
    whole = AnalyticHead(**how).fit(X, y)
    parts = AnalyticHead(**how)
    for part in np.array_split(np.arange(len(X)), 7):
        parts.partial_fit(X[part], y[part])
    same(parts, whole)
    first, second = (AnalyticHead(**how).fit(X[half], y[half]) for half in (slice(0, 25), slice(25, None)))
    same(first + second, whole)
    same(second.merge(first), whole)


@every_kind
def test_forgotten_rows_were_never_seen(how):
    X, y = blobs()
    other, labels = blobs(seed=1, classes=4)  # a class that is new comes, and goes with its rows
    head = AnalyticHead(**how).fit(X, y).partial_fit(other, labels)
    assert set(head.classes_) == set(labels)
    same(head.forget(other, labels), AnalyticHead(**how).fit(X, y), rtol=1e-6)
    assert set(head.classes_) == set(y)


@every_kind
def test_the_order_of_rows_does_not_matter(how):
    X, y = blobs(200)
    order = np.random.default_rng(0).permutation(len(X))
    same(AnalyticHead(**how, keep=50).fit(X[order], y[order]), AnalyticHead(**how, keep=50).fit(X, y))


def test_regressions_merge_and_forget_too():
    X, Y = lines()
    how = {"kind": "ridge", "target": "numbers"}
    head = AnalyticHead(**how).fit(X[:20], Y[:20]) + AnalyticHead(**how).fit(X[20:], Y[20:])
    same(head, AnalyticHead(**how).fit(X, Y))
    same(head.forget(X[30:], Y[30:]), AnalyticHead(**how).fit(X[:30], Y[:30]), rtol=1e-6)
    assert head.score(X, Y) > 0.6


def test_weights_are_repetitions():
    X, y = blobs()
    w = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = AnalyticHead().fit(X, y, sample_weight=w)
    same(weighted, AnalyticHead().fit(X.repeat(w, 0), y.repeat(w)))


def test_several_labels_and_their_probabilities():
    X, Y = lines(300)
    labels = (Y - Y.mean(0) > 0).astype(int)
    head = AnalyticHead("ridge", target="labels").fit(X[:200], labels[:200])
    p = head.predict_proba(X[200:])
    assert ((p > 0.5) == head.predict(X[200:])).all()
    assert head.score(X[200:], labels[200:]) > 0.5
    assert np.abs(p.mean(0) - labels[200:].mean(0)).max() < 0.15
    with torch.no_grad():
        found = head.to_linear()(torch.tensor(X[200:], dtype=torch.float32)).sigmoid()
    np.testing.assert_allclose(found, p, atol=1e-4)


@every_kind
def test_the_exported_layer_gives_the_probabilities(how):
    X, y = blobs()
    head = AnalyticHead(**how).fit(X, y)
    with torch.no_grad():
        found = head.to_linear()(torch.tensor(X, dtype=torch.float32)).softmax(1)
    np.testing.assert_allclose(found, head.predict_proba(X), atol=1e-4)
    np.testing.assert_array_equal(head.classes_[head.predict_proba(X).argmax(1)], head.predict(X))


def test_the_exported_layer_bears_means_that_are_large_beside_deviations():
    """Encoders have coordinates that hardly vary and are far from zero; single precision must not drown in them."""
    X, y = blobs()
    rng = np.random.default_rng(0)
    X = np.concatenate([X + 3, 20 + 1e-3 * rng.standard_normal((len(X), 2))], 1).astype(np.float32).astype(np.float64)
    head = AnalyticHead(shrinkage=1e-4).fit(X, y)
    with torch.no_grad():
        found = head.to_linear()(torch.tensor(X, dtype=torch.float32)).softmax(1)
    np.testing.assert_allclose(found, head.predict_proba(X), atol=2e-2)
    assert (found.numpy().argmax(1) == head.predict_proba(X).argmax(1)).all()


@pytest.mark.parametrize("weight", [None, 2.0])
def test_rows_are_forgotten_whatever_form_their_labels_and_weights_have(weight):
    X, y = blobs()
    twice = [X, X] if weight else [X]
    head = AnalyticHead().fit(np.concatenate(twice), np.concatenate([y] * len(twice)))
    gone = y == 2
    weights = None if weight is None else np.full(int(gone.sum()), weight)
    head.forget(X[gone], y[gone].astype(float), sample_weight=weights)
    rest = AnalyticHead().fit(np.concatenate([X[~gone]] * len(twice)), np.concatenate([y[~gone]] * len(twice)))
    assert list(head.classes_) == [0, 1] and len(head.kept_) == len(rest.kept_)
    np.testing.assert_allclose(head.predict_proba(X), rest.predict_proba(X), atol=1e-8)


def test_a_saved_head_keeps_weights_of_labels_that_are_numbers(tmp_path):
    X, y = blobs()
    how = {"class_weight": {0: 1.0, 1: 50.0, 2: 1.0}, "prior": {0: 0.8, 1: 0.1, 2: 0.1}}
    write_head(AnalyticHead(**how).fit(X[:40], y[:40]), tmp_path / "head.safetensors", rows=True)
    again = read_head(tmp_path / "head.safetensors").partial_fit(X[40:], y[40:])
    same(again, AnalyticHead(**how).fit(X, y))


@every_kind
@pytest.mark.parametrize("rows", [False, True])
def test_a_saved_head_goes_on_where_it_stopped(how, rows, tmp_path):
    X, y = blobs()
    names = np.array(["red", "green", "blue"])[y]
    head = AnalyticHead(**how).fit(X[:40], names[:40])
    write_head(head, tmp_path / "head.safetensors", rows=rows)
    again = read_head(tmp_path / "head.safetensors")
    same(again, head)
    if rows:
        same(again.partial_fit(X[40:], names[40:]), AnalyticHead(**how).fit(X, names))


def test_a_file_without_rows_holds_no_example(tmp_path):
    X, y = blobs()
    write_head(AnalyticHead().fit(X, y), tmp_path / "head.safetensors")
    data = (tmp_path / "head.safetensors").read_bytes()
    assert not any(row.tobytes() in data for row in X)


def test_more_features_than_rows_and_copies_of_features_are_no_trouble():
    X, y = blobs(20, 40)
    for how in KINDS:
        head = AnalyticHead(**how).fit(np.hstack([X, X]), y)
        assert np.isfinite(head.coef_).all()
        assert np.isfinite(head.predict_proba(np.hstack([X, X]))).all()


def test_a_constant_feature_changes_nothing():
    X, y = blobs()
    padded = np.hstack([X, np.full((len(X), 1), 1e3)])
    for kind in ("lda", "ridge"):
        head, plain = (AnalyticHead(kind, shrinkage=0.1).fit(rows, y) for rows in (padded, X))
        np.testing.assert_array_equal(head.predict(padded), plain.predict(X))
    everything = np.ones_like(X)
    for how in KINDS:
        head = AnalyticHead(**how).fit(everything, y)
        assert len(set(head.predict(everything))) == 1


def test_one_class_is_always_right():
    X, _ = blobs()
    for how in KINDS:
        head = AnalyticHead(**how).fit(X, np.full(len(X), 7))
        assert (head.predict(X + 5) == 7).all()
        assert (head.predict_proba(X) == 1).all()


def test_labels_that_are_still_to_come_are_never_predicted():
    X, y = blobs()
    for how in KINDS:
        head = AnalyticHead(**how).partial_fit(X, y, classes=[0, 1, 2, 3])
        assert list(head.classes_) == [0, 1, 2, 3]
        assert 3 not in head.predict(X)
        assert (head.predict_proba(X)[:, 3] == 0).all()


def test_a_label_never_seen_counts_as_a_mistake_and_cannot_be_forgotten():
    X, y = blobs()
    head = AnalyticHead().fit(X, y)
    assert head.score(X, np.full(len(X), 9)) == 0
    with pytest.raises(CannotForget, match="class 9"):
        head.forget(X[:1], [9])
    with pytest.raises(CannotForget, match="more rows of class"):
        head.forget(np.vstack([X, X]), np.concatenate([y, y]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_with_holes_are_named(bad):
    X, y = blobs()
    X[13, 2] = bad
    with pytest.raises(RowsUnusable, match="row 13"):
        AnalyticHead().fit(X, y)
    with pytest.raises(RowsUnusable, match="y contains NaN"):
        AnalyticHead().fit(X[:10], [np.nan] * 10)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"kind": "svm"}, "kind is one of"),
        ({"kind": "lda", "target": "numbers"}, "for classes"),
        ({"kind": "ridge", "shrinkage": "ledoit-wolf"}, "or a number"),
        ({"kind": "ridge", "prior": "uniform"}, "class_weight"),
        ({"keep": 0}, "keep > 0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(how, said):
    with pytest.raises(RowsUnusable, match=said):
        AnalyticHead(**how).fit(*blobs())


def test_heads_of_other_kinds_or_widths_are_not_merged():
    X, y = blobs()
    head = AnalyticHead().fit(X, y)
    for other in (AnalyticHead("ridge").fit(X, y), AnalyticHead().fit(X[:, :3], y)):
        with pytest.raises(HeadDoesNotFit):
            head.merge(other)


def test_without_kept_rows_only_sums_are_there():
    X, y = blobs()
    head = AnalyticHead(shrinkage=0.1, keep=0).fit(X, y)
    assert len(head.kept_) == 0
    np.testing.assert_allclose(head.coef_, AnalyticHead(shrinkage=0.1).fit(X, y).coef_)


@every_kind
def test_what_is_held_does_not_grow_with_the_rows(how):
    def held(parts: int) -> int:
        head = AnalyticHead(**how, keep=50)
        for seed in range(parts):
            head.partial_fit(*blobs(60, seed=seed))
        values = [*vars(head.moments_).values(), *vars(head.kept_).values()]
        return sum(value.nbytes for value in values if hasattr(value, "nbytes"))

    assert held(2) == held(9)


@pytest.mark.parametrize("how", [{"kind": "lda"}, {"kind": "ridge"}, {"kind": "ridge", "target": "numbers"}])
def test_the_conventions_of_scikit_learn_hold(how):
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is an extra")
    checks.check_estimator(AnalyticHead(**how), on_skip=None)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"kind": "ncm"}, {"kind": "random", "random_features": 50}])
def test_the_conventions_of_scikit_learn_hold_for_the_others(how):
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is an extra")
    known = {"check_class_weight_classifiers": "distances to class means do not depend on weights of classes"}
    checks.check_estimator(
        AnalyticHead(**how), on_skip=None, expected_failed_checks=known if how["kind"] == "ncm" else {}
    )


@pytest.mark.parametrize(
    "how",
    [
        {"prior": "foo"}, {"class_weight": "foo"}, {"shrinkage": 2.0}, {"shrinkage": float("nan")}, {"shrinkage": -1},
        {"shrinkage": None}, {"prior": {0: 0.0, 1: 0.0, 2: 0.0}}, {"class_weight": {0: -1.0}}, {"keep": -5},
        {"kind": "random", "random_features": 0}, {"kind": "ridge", "shrinkage": float("inf")},
    ],
)  # fmt: skip
def test_parameters_that_mean_nothing_are_refused(how):
    X, y = blobs()
    with pytest.raises(RowsUnusable, match="got"):
        AnalyticHead(**how).fit(X, y)


@pytest.mark.parametrize("changed", [{"class_weight": "balanced"}, {"kind": "random"}, {"target": "numbers"}])
def test_parameters_changed_after_learning_wait_for_the_next_fit(changed):
    X, y = blobs()
    head = AnalyticHead(kind="ridge").fit(X, y).set_params(**changed)
    for use in (lambda: head.predict(X), lambda: head.partial_fit(X, y), lambda: head.forget(X[:1], y[:1])):
        with pytest.raises(HeadDoesNotFit, match="next fit"):
            use()
    assert len(head.fit(X, y).predict(X)) == len(X)

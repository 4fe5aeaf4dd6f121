"""A head solved in one pass, in closed form, that can learn and forget: the estimator over moments.

head = AnalyticHead("lda").fit(X, y)                 # any arrays; scikit-learn's conventions, without needing it
head.partial_fit(X2, y2); head.forget(X, y)          # as if it had only ever seen X2
everyone = head + other                              # two machines, one head: the same as fitting on all rows
layer = head.to_linear()                             # an nn.Linear whose softmax are the probabilities
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimformer.errors import HeadDoesNotFit
from slimformer.heads.class_moments import ClassMoments, TargetMoments
from slimformer.heads.inputs import labels_of, not_fitted, numbers_of, rows_of, weights_of
from slimformer.heads.kept_rows import KeptRows
from slimformer.heads.logistic import again, class_numbers, solve_newton
from slimformer.heads.parameters import HeadParameters
from slimformer.heads.random_features import lifted, projection
from slimformer.heads.solve import (
    Left,
    Solution,
    class_weights,
    log_priors,
    solve_discriminant,
    solve_ridge,
    solve_targets,
)

CLASS_METHODS = ("predict_proba", "decision_function", "classes_")  # not there for numbers, as is the custom
ROWS = 4096  # rows lifted and summed at once


class AnalyticHead(HeadParameters):
    """Linear head in closed form, for classes, numbers or several labels.

    Its parameters are those of `HeadParameters`.

    Attributes
    ----------
    classes_ : labels in order. n_features_in_ : width of the rows. coef_, intercept_ : C × width, C.
    shrinkage_, loo_loss_, loo_error_ : what was chosen, and how kept rows fare when left out. n_iter_ : steps taken.

    Cost: fit n d² / 2 + d³, memory d² + keep · d whatever n. Formulas: `discriminant`, `ridge`, `random_features`.
    """

    _solution: Solution | None = None  # of the moments as they are; none after a change

    @property
    def _estimator_type(self) -> str:
        return "regressor" if self.target == "numbers" else "classifier"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "moments_")

    # --- learning and forgetting ---

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AnalyticHead:
        """Forget everything, then learn these rows."""
        for name in ("moments_", "kept_", "n_features_in_", "_solution", "_declared"):
            self.__dict__.pop(name, None)
        self.partial_fit(X, y, sample_weight=sample_weight)
        if self.kind == "newton":
            return self.polish([(X, y, sample_weight)])
        self.solution()
        return self

    def polish(self, parts: Iterable[tuple[Any, ...]]) -> AnalyticHead:
        """Newton steps over the rows learnt so far, given again as (X, y) or (X, y, weight), in any parts and order.

        They are read once for each step, so `parts` must allow several iterations. Kind "newton" only.
        """
        self._require_rows()
        if self.kind != "newton":
            raise HeadDoesNotFit(f"a head of kind {self.kind!r} is solved from its sums; only 'newton' takes steps")
        moments, start = self.moments_, self._solve()
        left = self._left(class_numbers(self.kept_.targets, moments.labels))
        rows = again(parts, moments.labels, self.n_features_in_)
        self._solution = solve_newton(moments, start, left, rows, self)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> AnalyticHead:
        """Learn more rows; labels may be new. `classes` may name labels that are still to come.

        For kind "newton" this gives the ridge solution it starts from; `polish` takes the steps.
        """
        self.require_sense()
        if hasattr(self, "moments_"):
            self._require_rows()
        rows = rows_of(X, "AnalyticHead", getattr(self, "n_features_in_", None))
        targets = self._targets(y, len(rows))
        weights = weights_of(sample_weight, len(rows))
        self.n_features_in_ = rows.shape[1]
        if classes is not None:
            self._declared = sorted({*getattr(self, "_declared", ()), *np.asarray(classes).tolist()})
        moments, sample = self._counted(rows, targets, weights)
        if hasattr(self, "moments_"):
            moments, sample = self.moments_ + moments, self.kept_ + sample
        self._become(moments, sample)
        return self

    def forget(self, X: Any, y: Any, sample_weight: Any = None) -> AnalyticHead:
        """Unlearn rows: the moments are those of a head that never saw them.

        So is the choice of the shrinkage as long as not more than `keep` rows were seen; beyond that it is made on
        the kept rows that remain.
        """
        self._require_rows()
        rows = rows_of(X, "AnalyticHead", self.n_features_in_)
        moments, sample = self._counted(rows, self._targets(y, len(rows)), weights_of(sample_weight, len(rows)))
        self._become(self.moments_ - moments, self.kept_ - sample)
        return self

    def merge(self, other: AnalyticHead) -> AnalyticHead:
        """A new head that has seen the rows of both."""
        self._require_rows()
        other._require_rows()
        if {**self.get_params(), "keep": 0} != {**other.get_params(), "keep": 0}:
            raise HeadDoesNotFit("only heads with the same parameters can be merged")
        if self.n_features_in_ != other.n_features_in_:
            raise HeadDoesNotFit(f"heads on {self.n_features_in_} and {other.n_features_in_} features cannot be merged")
        out = AnalyticHead(**self.get_params())
        out.n_features_in_, out._flat = self.n_features_in_, getattr(self, "_flat", True)
        out._become(self.moments_ + other.moments_, self.kept_ + other.kept_)
        return out

    __add__ = merge

    # --- using it ---

    def __getattribute__(self, name: str) -> Any:
        if name in CLASS_METHODS and object.__getattribute__(self, "target") == "numbers":
            raise AttributeError(f"a regression of numbers has no {name}")
        return object.__getattribute__(self, name)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores, rows × classes; for two classes the difference second − first."""
        S = self._scores(X).numpy()
        return S[:, 1] - S[:, 0] if self.target == "classes" and S.shape[1] == 2 else S

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, numbers, or 0/1 for each label."""
        S = self._scores(X)
        if self.target == "classes":
            return self.classes_[S.argmax(1).numpy()]
        if self.target == "labels":
            return (S > 0.5).long().numpy()
        return (S[:, 0] if self._flat else S).numpy()

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities, calibrated by one temperature on left-out scores; rows × classes, or rows × labels."""
        S, beta = self._scores(X), self.solution().beta
        return ((beta * S).softmax(1) if self.target == "classes" else (beta * (2 * S - 1)).sigmoid()).numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy (of all labels at once where there are several); R² of numbers."""
        rows = rows_of(X, "AnalyticHead", getattr(self, "n_features_in_", None))
        w = weights_of(sample_weight, len(rows))
        if self.target == "classes":
            right = self.predict(rows) == labels_of(y, len(rows))
            return float(w @ torch.as_tensor(right, dtype=torch.float64) / w.sum())
        Y, P = numbers_of(y, len(rows), binary=self.target == "labels")[0], torch.as_tensor(self.predict(rows)).double()
        P = P[:, None] if P.ndim == 1 else P
        if self.target == "labels":
            return float(w @ (P == Y).all(1).double() / w.sum())
        spread = (w[:, None] * (Y - (w @ Y) / w.sum()) ** 2).sum(0)
        return float((1 - (w[:, None] * (Y - P) ** 2).sum(0) / spread).mean())

    def to_linear(self) -> nn.Module:
        """The head as a module, float32: its softmax (sigmoid for labels) gives `predict_proba`; numbers are predicted.

        Random features become a fixed layer before it.
        """
        solution = self.solution()
        W, b = solution.weight, solution.bias.clamp(min=-1e9)
        if self.target == "classes":
            W, b = solution.beta * W, solution.beta * b
        elif self.target == "labels":
            W, b = 2 * solution.beta * W, solution.beta * (2 * b - 1)
        layer = linear(W, b)
        if self.kind != "random":
            return layer
        return nn.Sequential(linear(self._projection().mT), nn.ReLU(), layer)

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels in their order."""
        self._require_rows()
        if self.target == "classes":
            return np.array(self.moments_.labels)
        return np.arange(len(self.moments_.y))

    @property
    def coef_(self) -> NDArray[np.float64]:
        return self.solution().weight.numpy()

    @property
    def intercept_(self) -> NDArray[np.float64]:
        return self.solution().bias.numpy()

    @property
    def shrinkage_(self) -> float:
        return self.solution().shrinkage

    @property
    def n_iter_(self) -> int:
        return self.solution().steps

    @property
    def loo_loss_(self) -> float | None:
        return self.solution().loss

    @property
    def loo_error_(self) -> float | None:
        return self.solution().error

    def solution(self) -> Solution:
        """Weights, bias, shrinkage and temperature; solved when first asked for after a change."""
        self._require_rows()
        if self._solution is None:
            if self.kind == "newton" and self.steps:
                warnings.warn("no Newton steps yet: they need the rows again, head.polish(parts)", stacklevel=3)
            self._solution = self._solve()
        return self._solution

    # --- inside ---

    def _require_rows(self) -> None:
        if not hasattr(self, "moments_"):
            raise not_fitted("AnalyticHead")
        if self._learnt != {**self.get_params(), "steps": 0}:  # steps may be chosen later: sums do not know them
            raise HeadDoesNotFit("parameters changed after rows were learnt; they take effect with the next fit")

    def _targets(self, y: Any, n: int) -> NDArray[Any]:
        if self.target == "classes":
            return labels_of(y, n)
        values, self._flat = numbers_of(y, n, binary=self.target == "labels")
        return values.numpy()

    def _become(self, moments: ClassMoments | TargetMoments, sample: KeptRows) -> None:
        if isinstance(moments, ClassMoments):
            missing = set(getattr(self, "_declared", ())) - set(moments.labels)
            moments = moments + ClassMoments.zero(sorted(missing), moments.width, apart=moments.apart)
            sample = sample.only(moments.labels)
        self.moments_: Any = moments
        self.kept_, self._solution, self._learnt = sample, None, {**self.get_params(), "steps": 0}

    def _counted(
        self, rows: Tensor, targets: NDArray[Any], weights: Tensor
    ) -> tuple[ClassMoments | TargetMoments, KeptRows]:
        """Moments and sample of some rows; those of weight zero were never there."""
        there = weights > 0
        rows, targets, weights = rows[there], targets[there.numpy()], weights[there]
        sample = KeptRows.of(rows, targets, weights, self.keep)
        parts: list[Any] = []
        for index in torch.arange(len(rows)).split(ROWS):
            X, w = self._features(rows[index]), weights[index]
            if self.target == "classes":
                labels = targets[index.numpy()].tolist()
                parts.append(ClassMoments.of(X, labels, w, apart=self.class_weight is not None))
            else:
                parts.append(TargetMoments.of(X, torch.from_numpy(targets[index.numpy()]), w))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total, sample

    def _features(self, rows: Tensor) -> Tensor:
        return lifted(rows, self._projection()) if self.kind == "random" else rows

    def _projection(self) -> Tensor:
        return projection(self.n_features_in_, self.random_features, self.random_state)

    def _scores(self, X: Any) -> Tensor:
        self._require_rows()
        solution = self.solution()
        rows = rows_of(X, "AnalyticHead", self.n_features_in_)
        parts = [self._features(part).double() @ solution.weight.mT + solution.bias for part in rows.split(ROWS)]
        return torch.cat(parts)

    def _solve(self) -> Solution:
        if self.target != "classes":
            targets = torch.from_numpy(np.asarray(self.kept_.targets, np.float64))
            binary = self.target == "labels"
            left = self._left(targets)
            return solve_targets(
                self.moments_, left, shrinkage=self.shrinkage, binary=binary, standardize=self.standardize
            )
        left = self._left(class_numbers(self.kept_.targets, self.moments_.labels))
        omega = class_weights(self.moments_, self.class_weight)
        if self.kind in ("ridge", "random", "newton"):
            return solve_ridge(self.moments_, left, shrinkage=self.shrinkage, omega=omega, standardize=self.standardize)
        shrinkage = 1.0 if self.kind == "ncm" else self.shrinkage
        # empirical priors are none: they change when a row is left out
        empirical = self.prior == "empirical" and self.kind == "lda"
        return solve_discriminant(
            self.moments_, left, shrinkage=shrinkage, omega=omega, standardize=self.standardize,
            log_prior=None if empirical else log_priors(self.moments_, self.prior),
        )  # fmt: skip

    def _left(self, y: Tensor) -> Left:
        w = self.kept_.weights
        return Left(self._features(self.kept_.X).double(), y, w.clamp(max=1), w)


def linear(W: Tensor, b: Tensor | None = None) -> nn.Linear:
    """A float32 layer with these weights."""
    layer = nn.Linear(W.shape[1], W.shape[0], bias=b is not None)
    with torch.no_grad():
        layer.weight.copy_(W)
        if b is not None:
            layer.bias.copy_(b)
    return layer

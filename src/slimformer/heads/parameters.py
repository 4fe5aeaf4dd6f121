"""Parameters of a head that is solved in closed form, by the conventions of scikit-learn's estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Self

from slimformer.errors import RowsUnusable

KINDS = ("lda", "ridge", "random", "ncm", "newton")
TARGETS = ("classes", "numbers", "labels")


@dataclass(eq=False, repr=False)
class HeadParameters:
    """What a head is fitted by; they make sense together or are refused when rows are learnt.

    Parameters
    ----------
    kind : "lda" (shrunk discriminant), "ridge" (least squares on indicators), "random" (ridge on `random_features`
        random ReLU features, RanPAC), "ncm" (nearest class mean), "newton" (logistic regression by Newton steps from
        the ridge solution; one more pass each). Numbers and labels take "ridge" or "random".
    target : "classes", "numbers" (regression) or "labels" (a 0/1 column for each label).
    shrinkage : "loo" chooses it by exact leave-one-out loss, "ledoit-wolf" by their formula (LDA only); or a number:
        γ in 0…1 for LDA, λ over the mean variance for ridge; for "newton" μ over it, from ridge's λ by "loo".
    prior : "empirical", "uniform", or {label: probability}; for LDA and NCM ("ncm" takes "empirical" as uniform).
    class_weight : None, "balanced" or {label: weight}, as if rows came so often (so empirical priors follow it).
        Keeps a Gram matrix for each class.
    standardize : scale features by their standard deviation before shrinking.
    random_features : how many, for kind "random". steps : Newton steps at most, fewer where they have converged.
    keep : rows kept to leave out, at most; 0 keeps no data at all, only sums (then shrinkage must be a number).
    random_state : seed of the random features.
    """

    kind: str = "lda"
    _: KW_ONLY
    target: str = "classes"
    shrinkage: float | str = "loo"
    prior: str | Mapping[Any, float] = "empirical"
    class_weight: str | Mapping[Any, float] | None = None
    standardize: bool = True
    random_features: int = 2000
    steps: int = 8
    keep: int = 4096
    random_state: int = 0

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(HeadParameters)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; takes effect with the next fit."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise RowsUnusable(f"Invalid parameter {name!r} for AnalyticHead; it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        usual = {field.name: field.default for field in fields(HeadParameters)}
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value is not usual[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools ask an estimator about itself; only they call this, so only they need it."""
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

        numbers = self.target == "numbers"
        return Tags(
            estimator_type="regressor" if numbers else "classifier",
            target_tags=TargetTags(required=True, multi_output=self.target != "classes"),
            classifier_tags=None if numbers else ClassifierTags(multi_label=self.target == "labels"),
            regressor_tags=RegressorTags() if numbers else None,
        )

    def require_sense(self) -> None:
        """Refuse parameters of a head that do not go together."""
        kind, target, shrinkage = self.kind, self.target, self.shrinkage
        if kind not in KINDS or target not in TARGETS:
            given = f"kind={kind!r}, target={target!r}"
            raise RowsUnusable(f"kind is one of {', '.join(KINDS)} and target one of {', '.join(TARGETS)}; got {given}")
        if target != "classes" and kind not in ("ridge", "random"):
            raise RowsUnusable(f"kind {kind!r} is for classes; use 'ridge' or 'random' for {target}")
        known = ("loo", "ledoit-wolf") if kind == "lda" else ("loo",)
        if isinstance(shrinkage, str) and shrinkage not in known:
            raise RowsUnusable(f"shrinkage of {kind} is {' or '.join(known)} or a number; got {shrinkage!r}")
        if self.prior != "empirical" and kind in ("ridge", "random", "newton"):
            raise RowsUnusable(f"kind {kind!r} has no prior; use class_weight instead")
        if kind == "newton" and not self.steps >= 0:
            raise RowsUnusable(f"steps must be 0 or more; got {self.steps!r}")
        if not isinstance(shrinkage, str):
            _require_amount(shrinkage, most=1.0 if kind in ("lda", "ncm") else math.inf)
        _require_shares("prior", self.prior, ("empirical", "uniform"))
        _require_shares("class_weight", self.class_weight or "balanced", ("balanced",))
        if self.keep < 0 or self.random_features < 1:
            got = f"{self.keep} and {self.random_features}"
            raise RowsUnusable(f"keep is 0 or more and random_features 1 or more; got {got}")


def _require_amount(shrinkage: Any, *, most: float) -> None:
    number = isinstance(shrinkage, int | float) and not isinstance(shrinkage, bool)
    if not (number and 0 <= shrinkage <= most and math.isfinite(shrinkage)):
        reach = "from 0 to 1" if most == 1 else "from 0 on"
        raise RowsUnusable(f"shrinkage is a number {reach}, or 'loo'; got {shrinkage!r}")


def _require_shares(name: str, value: Any, words: tuple[str, ...]) -> None:
    """Refuse priors and weights of classes that are none."""
    if not isinstance(value, Mapping):
        if value not in words:
            raise RowsUnusable(f"{name} is {' or '.join(words)}, or a number for each label; got {value!r}")
        return
    shares = list(value.values())
    good = all(isinstance(x, int | float) and x >= 0 and math.isfinite(x) for x in shares)
    if not good or not sum(shares) > 0:
        raise RowsUnusable(f"{name} gives labels numbers of 0 or more, one of them more than 0; got {dict(value)!r}")

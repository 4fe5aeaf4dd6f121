"""What scikit-learn's tools ask an estimator about itself. Only they call this, so only they need scikit-learn."""

from __future__ import annotations

from typing import Any


def tags_of(head: Any) -> Any:
    """Tags of a head, by its target."""
    from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

    several = head.target == "labels"
    return Tags(
        estimator_type="regressor" if head.target == "numbers" else "classifier",
        target_tags=TargetTags(required=True, multi_output=head.target != "classes"),
        classifier_tags=None if head.target == "numbers" else ClassifierTags(multi_label=several),
        regressor_tags=RegressorTags() if head.target == "numbers" else None,
    )

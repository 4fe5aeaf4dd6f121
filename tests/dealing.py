"""Fewer cases of the same law: every value of every parameter is there, and not every combination."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any


def dealt(first: Iterable[Any], *others: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The values of `first`, to which the combinations of the others are dealt in turn, until both are used up.

    `dealt("abc", [1, 2], [True, False])` is a1T, b1F, c2T, a2F: for laws of code that all values go through, where
    their product would try the same lines again.
    """
    values, combinations = list(first), list(itertools.product(*others))
    n = max(len(values), len(combinations))
    return [(values[i % len(values)], *combinations[i % len(combinations)]) for i in range(n)]


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations in which every two values of any two parameters stand together at least once, found greedily."""
    lists = [list(axis) for axis in axes]
    at = list(itertools.combinations(range(len(lists)), 2))
    left = {(i, j, a, b) for i, j in at for a in range(len(lists[i])) for b in range(len(lists[j]))}
    chosen = []
    everything = list(itertools.product(*(range(len(values)) for values in lists)))
    while left:
        best = max(everything, key=lambda case: sum((i, j, case[i], case[j]) in left for i, j in at))
        left -= {(i, j, best[i], best[j]) for i, j in at}
        chosen.append(tuple(values[k] for values, k in zip(lists, best, strict=True)))
    return chosen

"""From a ridge head to logistic regression: the rows read again, the penalty carried over, the end calibrated.

The penalty is the one that leave-one-out chose for ridge, in the units of log loss: where ridge adds λ to a variance v,
Newton adds μ to κ v with κ the mean curvature of log loss at the start, so μ = κ λ shrinks every direction as much. It
is at least 1 / n, a prior of weights of the size of one: squared error is content with less where classes can be
separated, log loss would grow its weights without end. It stays the same in all steps, so that the penalised loss can
only fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from slimformer.errors import HeadDoesNotFit, RowsUnusable
from slimformer.heads.class_moments import NOTHING, ClassMoments
from slimformer.heads.inputs import labels_of, rows_of, weights_of
from slimformer.heads.newton import (
    Parts,
    into_contrasts,
    left_out,
    mean_curvature,
    out_of_contrasts,
    polish,
    scaling,
)
from slimformer.heads.parameters import HeadParameters
from slimformer.heads.ridge import BARELY
from slimformer.heads.solve import Left, Solution, class_weights
from slimformer.heads.temperature import log_loss, temperature


def class_numbers(targets: NDArray[Any], labels: Sequence[Any]) -> Tensor:
    """The place of every label among the known ones."""
    index = {label: i for i, label in enumerate(labels)}
    strange = next((label for label in targets.tolist() if label not in index), None)
    if strange is not None:
        raise RowsUnusable(f"rows of class {strange!r} are given again, and none were ever learnt")
    return torch.tensor([index[label] for label in targets.tolist()], dtype=torch.long)


def again(parts: Iterable[tuple[Any, ...]], labels: Sequence[Any], width: int) -> Parts:
    """A reader of labelled rows that starts from the beginning every time; rows of weight zero are not there."""
    if iter(parts) is iter(parts):
        raise RowsUnusable("Newton steps read the rows again and again; give a list of parts, not an iterator")

    def read() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for X, y, *weight in parts:
            rows = rows_of(X, "AnalyticHead", width)
            w = weights_of(weight[0] if weight else None, len(rows))
            there = w > 0
            yield rows[there], class_numbers(labels_of(y, len(rows))[there.numpy()], labels), w[there]

    return read


def solve_newton(moments: ClassMoments, start: Solution, left: Left, parts: Parts, how: HeadParameters) -> Solution:
    """Logistic regression of the rows of `moments`, read again by `parts`, from the ridge solution `start`."""
    seen = moments.counts > NOTHING
    if int(seen.sum()) < 2 or not how.steps:
        return start
    omega, shrinkage = class_weights(moments, how.class_weight), how.shrinkage
    z = scaling(moments.weighted(omega).as_targets(), standardize=how.standardize)
    W, b = start.beta * start.weight[seen], start.beta * start.bias[seen]
    n = float((moments.counts * omega).sum())
    relative = _relative(W, b, start.shrinkage, left, n) if isinstance(shrinkage, str) else float(shrinkage)
    mu = max(relative, BARELY) * z.level
    number = seen.long().cumsum(0) - 1  # classes never seen stay out of the softmax

    def weighted() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for X, y, w in parts():
            yield X, number[y], w * omega[y]

    end = polish(weighted, into_contrasts(W, b, z), z, mu=mu, steps=how.steps)
    _require_same(n, end.sums.rows)
    W, b = out_of_contrasts(end.theta, z)
    beta, loss, error = 1.0, None, None
    if len(left):
        y = number[left.y]
        S = left_out(end, z, left.X, y, omega[left.y] * left.u, mu)
        beta = temperature(S, y, left.w)
        loss = log_loss(beta * S, y, left.w)
        error = float(left.w @ (S.argmax(1) != y).double() / left.w.sum())
    weight = torch.zeros_like(start.weight).index_add_(0, seen.nonzero()[:, 0], W)
    bias = torch.full_like(start.bias, -torch.inf).masked_scatter_(seen, b)
    return Solution(weight, bias, relative, beta, loss, error, len(end.losses) - 1)


def _relative(W: Tensor, b: Tensor, ridge: float, left: Left, rows: float) -> float:
    """μ over the mean variance: κ times what ridge has, and 1 / n at least."""
    return max(1 / rows, ridge * mean_curvature((left.X @ W.mT + b).softmax(1), left.w))


def _require_same(learnt: float, read: float) -> None:
    if abs(learnt - read) > 1e-6 * learnt:
        raise HeadDoesNotFit(f"the steps were given rows that weigh {read:g}, and the head has learnt {learnt:g}")

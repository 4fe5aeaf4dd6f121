"""From moments and a few kept rows to a head: choose the shrinkage by leave-one-out loss, then calibrate.

The loss of a shrinkage is that of left-out scores after the best temperature for them, so a head is neither punished
for scores on another scale nor for being sure too early. Numbers as targets are judged by squared error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slimformer.errors import RowsUnusable
from slimformer.heads.class_moments import NOTHING, ClassMoments, TargetMoments, balanced
from slimformer.heads.discriminant import GAMMAS, discriminant, ledoit_wolf, left_out_scores, within
from slimformer.heads.ridge import LAMBDAS, centred, left_out_predictions, ridge
from slimformer.heads.temperature import log_loss, temperature


@dataclass(frozen=True)
class Solution:
    """Scores are W φ(x) + b; probabilities softmax(β scores). Losses are means over the kept rows, each left out."""

    weight: Tensor  # C × d, float64
    bias: Tensor
    shrinkage: float
    beta: float = 1.0
    loss: float | None = None  # leave-one-out: log loss of classes, or squared error over the variance
    error: float | None = None  # leave-one-out: share of wrong classes
    steps: int = 0  # Newton steps taken from the closed form


@dataclass(frozen=True)
class Left:
    """Rows to be left out one by one: features, class or targets, the weight left out, the weight they count with."""

    X: Tensor
    y: Tensor  # class numbers, or targets
    u: Tensor
    w: Tensor

    def __len__(self) -> int:
        return len(self.X)


def solve_discriminant(
    moments: ClassMoments,
    left: Left,
    *,
    shrinkage: float | str,
    log_prior: Tensor | None,
    omega: Tensor,
    standardize: bool,
) -> Solution:
    """LDA, or with shrinkage 1 the nearest class mean. `log_prior` None means empirical. Cost d³ + 14 · rows · d C."""
    scatter = within(moments.weighted(omega), standardize=standardize)
    seen = moments.counts > NOTHING
    prior = (scatter.counts / scatter.counts.sum()).log() if log_prior is None else log_prior
    prior = torch.where(seen, prior, -torch.inf)
    Z = scatter.turned(left.X)
    if shrinkage == "ledoit-wolf":
        _require_rows(left)
        shrinkage = ledoit_wolf(scatter, Z, left.y)

    def scores(gamma: float) -> Tensor:
        given = None if log_prior is None else prior
        return left_out_scores(scatter, Z, left.y, omega[left.y] * left.u, gamma, given)

    chosen, beta, loss, error = _choose(scores, left, shrinkage, GAMMAS)
    return Solution(*discriminant(scatter, chosen, prior), chosen, beta, loss, error)


def solve_ridge(
    moments: ClassMoments, left: Left, *, shrinkage: float | str, omega: Tensor, standardize: bool
) -> Solution:
    """Ridge regression of class indicators. Cost d³ + 19 · rows · d C."""
    problem = centred(moments.weighted(omega).as_targets(), standardize=standardize)
    seen = moments.counts > NOTHING
    Z, Y = problem.turned(left.X), torch.eye(len(moments.labels), dtype=torch.float64)[left.y]

    def scores(relative: float) -> Tensor:
        return left_out_predictions(problem, Z, Y, omega[left.y] * left.u, relative).masked_fill(~seen, -torch.inf)

    chosen, beta, loss, error = _choose(scores, left, shrinkage, LAMBDAS)
    W, b = ridge(problem, chosen)
    return Solution(W, b.masked_fill(~seen, -torch.inf), chosen, beta, loss, error)


def class_weights(moments: ClassMoments, given: str | Mapping[Any, float] | None) -> Tensor:
    """ω of every class: ones, as given by label, or balanced."""
    if given is None:
        return torch.ones_like(moments.counts)
    if isinstance(given, Mapping):
        return torch.tensor([given.get(label, 1.0) for label in moments.labels], dtype=torch.float64)
    return balanced(moments.counts)


def log_priors(moments: ClassMoments, given: str | Mapping[Any, float]) -> Tensor:
    """Logarithms of the priors given by label, else equal ones for all classes seen."""
    if isinstance(given, Mapping):
        values = [float(given.get(label, 0.0)) for label in moments.labels]
        return (torch.tensor(values, dtype=torch.float64) / max(sum(values), NOTHING)).log()
    seen = (moments.counts > NOTHING).double()
    return (seen / seen.sum()).log()


def solve_targets(
    moments: TargetMoments, left: Left, *, shrinkage: float | str, binary: bool, standardize: bool
) -> Solution:
    """Ridge regression of numbers, or of several yes/no labels at once."""
    problem = centred(moments, standardize=standardize)
    Z = problem.turned(left.X)
    variance = (moments.energy / moments.rows - problem.y**2).clamp(min=1e-300).sum()

    def predictions(relative: float) -> Tensor:
        return left_out_predictions(problem, Z, left.y, left.u, relative)

    def loss(relative: float) -> float:
        wrong = ((predictions(relative) - left.y) ** 2).sum(1)
        return float(left.w @ wrong / left.w.sum() / variance)

    if isinstance(shrinkage, str):
        _require_rows(left)
        losses = {relative: loss(relative) for relative in LAMBDAS}
        shrinkage = _least(losses)
    W, b = ridge(problem, shrinkage)
    if not len(left):
        return Solution(W, b, shrinkage)
    beta, error = 1.0, None
    if binary:
        S = 2 * predictions(shrinkage) - 1
        yes = left.y.flatten().long()
        beta = temperature(torch.stack([-S.flatten(), S.flatten()], 1) / 2, yes, left.w.repeat_interleave(S.shape[1]))
        error = float(left.w @ ((S > 0) != (left.y > 0.5)).any(1).double() / left.w.sum())
    return Solution(W, b, shrinkage, beta, loss(shrinkage), error)


def _choose(
    scores: Callable[[float], Tensor], left: Left, shrinkage: float | str, grid: Sequence[float]
) -> tuple[float, float, float | None, float | None]:
    """The shrinkage, its temperature, loss and error."""
    if not isinstance(shrinkage, str) and not len(left):
        return float(shrinkage), 1.0, None, None
    _require_rows(left)
    tried = {g: _calibrated(scores(g), left) for g in (grid if isinstance(shrinkage, str) else (float(shrinkage),))}
    chosen = _least({g: loss for g, (_, loss) in tried.items()})
    S = scores(chosen)
    error = float(left.w @ (S.argmax(1) != left.y).double() / left.w.sum())
    beta, loss = tried[chosen]
    return chosen, beta, loss, error


def _calibrated(S: Tensor, left: Left) -> tuple[float, float]:
    beta = temperature(S, left.y, left.w)
    return beta, log_loss(beta * S, left.y, left.w)


def _least(losses: dict[float, float]) -> float:
    """The best; of those that are as good up to rounding, the most shrunk."""
    best = min(losses.values())
    return max(g for g, loss in losses.items() if loss <= best + 1e-7 * abs(best) + 1e-12)


def _require_rows(left: Left) -> None:
    if not len(left):
        raise RowsUnusable("no rows were kept to choose the shrinkage by; give it as a number, or keep > 0")

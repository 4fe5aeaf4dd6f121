"""Two models and, for every input, one question: is the small one sure enough to keep it?

    H(p) = −Σ_c p_c ln p_c        of the small model's output, in nats; for a window of text the mean of its predictions

An input stays with the small model where H < τ and goes on to the large one otherwise (also where H is NaN). With
losses ℓ and prices m (fractions of the dense model's block MACs), over inputs i of weight w_i,

    loss(τ) = Σ_i w_i (ℓ_small,i if H_i < τ else ℓ_large,i) / Σ_i w_i
    macs(τ) = m_small + m_large · share of inputs with H_i ≥ τ

The small model reads every input and is always paid. τ = ∞ is the small model alone; τ = 0 has the answers of the
large one alone, at the price of both. Both functions are steps with a jump at every entropy that occurs, so n inputs
have at most n + 1 thresholds to choose from, and one sort finds them all.

Reference: Teerapittayanon et al. (2016), BranchyNet, for entropy as the rule of exit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimformer.errors import BudgetOutOfReach, NotFinite
from slimformer.models.outputs import at_once

ROUNDING = 1e-9  # sums over inputs differ by this much with the order they are taken in

Macs = tuple[float, float]  # what the small and the large model cost, as fractions of the dense one's block MACs


@dataclass(frozen=True)
class Outcomes:
    """What both models made of the same inputs; losses are lower where better.

    `weights` is how much an input counts in the mean loss (1, or the tokens predicted), `lengths` its tokens.
    """

    measure: str  # "error", "disagreement" or "nats per token"
    entropy: tuple[float, ...]
    small: tuple[float, ...]
    large: tuple[float, ...]
    weights: tuple[float, ...]
    lengths: tuple[float, ...]

    def __post_init__(self) -> None:
        columns = (self.entropy, self.small, self.large, self.weights, self.lengths)
        sizes = {len(column) for column in columns}
        if len(sizes) != 1 or sizes == {0}:
            raise ValueError(f"both models need an outcome for each of one or more inputs, not {sorted(sizes)}")
        if not all(math.isfinite(value) for column in columns for value in column):
            raise NotFinite(f"entropies and losses ({self.measure}) hold NaN or infinite values")
        if min(self.weights) <= 0 or min(self.lengths) <= 0:
            raise ValueError("weights and lengths of inputs must be positive")


@dataclass(frozen=True)
class Answers:
    """What one model made of some inputs; where there are no labels, `losses` is empty and `choices` are compared."""

    measure: str
    entropy: tuple[float, ...]
    losses: tuple[float, ...]
    choices: tuple[int, ...]
    weights: tuple[float, ...]
    lengths: tuple[float, ...]


@dataclass(frozen=True)
class Point:
    """What one threshold gives: share of inputs handed on, mean MACs by input and by token, mean loss."""

    threshold: float
    routed: float
    macs: float
    token_macs: float
    loss: float


@dataclass(frozen=True, eq=False)
class WindowScores:
    """For every row of text: −ln p of its tokens in all, mean entropy of the predictions, how many there were."""

    nats: Tensor
    entropy: Tensor
    tokens: Tensor


def entropy(scores: Tensor) -> Tensor:
    """H = −Σ p ln p of softmax(scores) over the last axis, in nats, at least in float32."""
    log_p = scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
    return torch.special.entr(log_p.exp()).sum(-1).clamp_min(0.0)


def handed_on(entropies: Tensor, threshold: float) -> Tensor:
    """Which inputs the large model gets. NaN is not below any threshold: a broken small model decides nothing."""
    return ~(entropies < threshold)


def window_scores(logits: Tensor, ids: Tensor, mask: Tensor) -> WindowScores:
    """Nats and mean entropy of the next tokens of every row; a position counts if it and the next one are real.

    Rows that predict nothing have 0 nats and no entropy. Cost: one softmax for each position that counts.
    """
    counted = mask[:, :-1] & mask[:, 1:]
    total = torch.zeros(len(ids), 2, dtype=torch.float64)
    (row, position), few = counted.nonzero(as_tuple=True), at_once(logits)
    for i, t in zip(row.split(few), position.split(few), strict=True):
        scores = logits[i, t].to(torch.promote_types(logits.dtype, torch.float32))
        nats = -scores.log_softmax(-1).gather(-1, ids[i, t + 1, None].long())[:, 0]
        total.index_add_(0, i.cpu(), torch.stack([nats, entropy(scores)], 1).cpu().double())
    tokens = counted.sum(1).cpu()
    return WindowScores(total[:, 0], total[:, 1] / tokens.clamp_min(1), tokens)


def paired(small: Answers, large: Answers) -> Outcomes:
    """Two models on the same inputs. Without labels the small one loses 1 where it chooses otherwise, the large one 0.

    The share of such disagreements bounds what the accuracy can change by.
    """
    if (small.measure, small.weights, small.lengths) != (large.measure, large.weights, large.lengths):
        raise ValueError("the answers are not to the same inputs")
    losses = small.losses, large.losses
    if not small.losses:
        other = tuple(float(a != b) for a, b in zip(small.choices, large.choices, strict=True))
        losses = other, (0.0,) * len(other)
    return Outcomes(small.measure, small.entropy, *losses, small.weights, small.lengths)


def routed_losses(outcomes: Outcomes, threshold: float) -> tuple[float, ...]:
    """The loss of every input after routing: values for a bootstrap."""
    columns = zip(outcomes.entropy, outcomes.small, outcomes.large, strict=True)
    return tuple(small if h < threshold else large for h, small, large in columns)


def at_threshold(outcomes: Outcomes, macs: Macs, threshold: float) -> Point:
    """The point a given threshold leads to, for example one that was chosen on other data."""
    routed = np.asarray(outcomes.entropy) >= threshold
    weights, lengths = np.asarray(outcomes.weights), np.asarray(outcomes.lengths)
    loss = float(np.dot(weights, routed_losses(outcomes, threshold)) / weights.sum())
    share, by_token = float(routed.mean()), float(lengths[routed].sum() / lengths.sum())
    return Point(threshold, share, macs[0] + macs[1] * share, macs[0] + macs[1] * by_token, loss)


def routing_curve(outcomes: Outcomes, macs: Macs) -> tuple[Point, ...]:
    """One point for every way to route, from the small model alone (τ = ∞) to the large one (τ = 0).

    Inputs of equal entropy go together. A threshold stands midway between two entropies, so that rounding turns no
    decision. Cost O(n log n).
    """
    order = np.argsort(-np.asarray(outcomes.entropy), kind="stable")
    h, small, large, weights, lengths = (
        np.asarray(column, dtype=np.float64)[order]
        for column in (outcomes.entropy, outcomes.small, outcomes.large, outcomes.weights, outcomes.lengths)
    )
    last = np.flatnonzero(np.append(h[1:] < h[:-1], True)) + 1  # how many are routed at each step: whole ties only
    steps = np.concatenate([[0], last])
    routed = steps / len(h)
    loss = (weights @ small + _sums(weights * (large - small), steps)) / weights.sum()
    by_token = _sums(lengths, steps) / lengths.sum()
    return tuple(
        Point(_between(h, int(k)), float(r), float(macs[0] + macs[1] * r), float(macs[0] + macs[1] * t), float(x))
        for k, r, t, x in zip(steps, routed, by_token, loss, strict=True)
    )


def threshold_within(outcomes: Outcomes, macs: Macs, *, tolerance: float) -> Point:
    """The point of least mean MACs whose loss is at most `tolerance` above that of the large model alone.

    There is always one: τ = 0. It is the best of many on these inputs, so it looks a little better than it is.
    """
    if not tolerance >= 0:
        raise ValueError(f"a tolerance is not negative, and {tolerance} is")
    curve = routing_curve(outcomes, macs)
    most = curve[-1].loss + tolerance + ROUNDING * max(1.0, abs(curve[-1].loss))
    return next(point for point in curve if point.loss <= most)  # MACs grow along the curve


def threshold_for_macs(outcomes: Outcomes, macs: Macs, *, mean_macs: float) -> Point:
    """The lowest threshold, so the most inputs handed on, whose mean MACs are at most `mean_macs`."""
    affordable = [point for point in routing_curve(outcomes, macs) if point.macs <= mean_macs + ROUNDING]
    if not affordable:
        raise BudgetOutOfReach(
            f"mean MACs of {mean_macs:g} were asked for, and the small model alone takes {macs[0]:.4g}; make it smaller"
        )
    return affordable[-1]


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points no other one beats: fewest MACs first, each with a lower loss than all before it."""
    out: list[Point] = []
    for point in sorted(points, key=lambda point: (point.macs, point.loss)):
        if not out or point.loss < out[-1].loss:
            out.append(point)
    return tuple(out)


def _sums(values: NDArray[np.float64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums of the first 0, 1, … values, at the steps asked for."""
    sums: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(values)])[steps]
    return sums


def _between(h: NDArray[np.float64], k: int) -> float:
    """A threshold that hands on the first k of the entropies h, which fall, and no other."""
    if k == 0:
        return math.inf
    if k == len(h):
        return 0.0
    above, below = float(h[k - 1]), float(h[k])
    middle = below + (above - below) / 2
    return middle if middle > below else above  # neighbours among floating-point numbers have no middle

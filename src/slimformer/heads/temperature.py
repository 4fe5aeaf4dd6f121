"""One number that turns scores into honest probabilities: softmax(β s), β by maximum likelihood on left-out scores.

The mean of −log softmax(β s)_y is convex in β; Newton's step is (mean s_y − mean E_p s) / mean Var_p s. Where all n
rows are right no finite β is best. The rule of succession then bounds it: at the mean margin the odds of an error are
1 : n + 1.

Reference: Guo, Pleiss, Sun, Weinberger (2017).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

STEPS = 50
SHARPEST = 50.0  # β times the mean margin: beyond it every probability is 0 or 1 anyway


def temperature(S: Float[Tensor, "n C"], y: Int[Tensor, " n"], w: Float[Tensor, " n"]) -> float:
    """The β of least loss on rows with scores S and labels y; 1 where there is nothing to learn from.

    Scores of −∞ stay out of the way.
    """
    real = torch.isfinite(S.gather(1, y[:, None]))[:, 0]
    S, y, w = S[real], y[real], w[real]
    if len(S) < 2 or S.shape[1] < 2:
        return 1.0
    margins = (S.amax(1, keepdim=True) - S).masked_fill(~torch.isfinite(S), 0).amax(1)
    margin = float(w @ margins / w.sum())
    if not margin > 0:
        return 1.0
    right = bool((S.argmax(1) == y).all())
    low, high = 0.0, (math.log1p(float(w.sum())) if right else SHARPEST) / margin
    beta = min(1.0, high)
    for _ in range(STEPS):
        slope, curve = _derivatives(S, y, w, beta)
        low, high = (low, beta) if slope > 0 else (beta, high)
        step = beta - slope / curve if curve > 0 else high
        new = step if low < step < high else (low + high) / 2
        if abs(new - beta) <= 1e-12 * beta:
            break
        beta = new
    return beta


def _derivatives(
    S: Float[Tensor, "n C"], y: Int[Tensor, " n"], w: Float[Tensor, " n"], beta: float
) -> tuple[float, float]:
    p = (beta * S).softmax(1)
    finite = S.masked_fill(~torch.isfinite(S), 0)
    mean = (p * finite).sum(1)
    slope = mean - S.gather(1, y[:, None])[:, 0]
    return float(w @ slope / w.sum()), float(w @ (p * (finite - mean[:, None]) ** 2).sum(1) / w.sum())


def log_loss(S: Float[Tensor, "n C"], y: Int[Tensor, " n"], w: Float[Tensor, " n"]) -> float:
    """Mean of −log softmax(s)_y over rows whose own score is finite."""
    loss = -S.log_softmax(1).gather(1, y[:, None])[:, 0]
    real = torch.isfinite(loss)
    return float(w[real] @ loss[real] / w[real].sum()) if bool(real.any()) else float("inf")

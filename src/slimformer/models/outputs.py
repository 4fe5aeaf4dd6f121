"""What the outputs of a model say: scores of outcomes, and how far the outputs of one model are from another's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slimformer.linalg.precision import to_double

NEVER = -1e4  # a score of no probability in any precision
NUMBERS = 2**17  # of scores compared at once: so many stay in the cache of a core, also in float64


def has_outcomes(output: Any) -> bool:
    """Are there two or more outcomes to choose between?"""
    return (
        "logits_per_image" in output or "start_logits" in output or ("logits" in output and output.logits.shape[-1] > 1)
    )


def outcomes(output: Any, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (rows × distributions × outcomes) and which of the distributions of each row count."""
    if "start_logits" in output:
        scores = torch.stack([output.start_logits, output.end_logits], 1)
        real = real_positions(mask, output.start_logits[..., None])
        # an answer cannot start or end in padding; a finite score, so that zero times it is zero
        return scores.masked_fill(~real[:, None], NEVER), real.any(1, keepdim=True).expand(-1, 2)
    if "logits_per_image" in output:  # of each image the texts, and of each text the images, of this batch
        scores = torch.stack([output.logits_per_image, output.logits_per_text], 1)
        return scores, torch.ones_like(scores[..., 0], dtype=torch.bool)
    logits: Tensor = output.logits
    scores = logits[:, None] if logits.ndim == 2 else logits
    if scores.ndim != 3 or scores.shape[-1] < 2:
        raise ValueError(f"logits of shape {tuple(logits.shape)} do not tell two or more outcomes apart")
    return scores, real_positions(None if logits.ndim == 2 else mask, scores)


def draw(log_p: Tensor, generator: torch.Generator) -> Tensor:
    """One outcome for every row, on the CPU: the first at which the distribution function exceeds a uniform draw.

    So every device draws the same, and in a tenth of the time of `torch.multinomial`.
    """
    below = log_p.cpu().exp().cumsum(-1)
    draws = torch.rand(len(below), 1, generator=generator) * below[:, -1:]
    return torch.searchsorted(below, draws, right=True).clamp_max(log_p.shape[-1] - 1).to(log_p.device)


def harm(dense: Any, small: Any, mask: Tensor | None) -> tuple[float, int]:
    """How far the outputs of one batch moved, and over how many outputs that is the mean: for probes, so in float32.

    KL(dense ‖ small) in nats where there are scores to choose by; else E ‖x − y‖² / E ‖x‖² of numbers or last states.
    """
    if has_outcomes(dense):
        p, counted = outcomes(dense, mask)
        q, _ = outcomes(small, mask)
        places = counted.nonzero()
        kl = torch.cat([_single_kl(p, q, *some.unbind(1)) for some in places.split(at_once(p))])
        return float(to_double(kl).mean()), len(kl)
    x, y = (output.logits if "logits" in output else output.last_hidden_state for output in (dense, small))
    if x.ndim == 3:
        real = real_positions(mask, x)
        x, y = x[real], y[real]
    energy = to_double(x).square().sum(-1).mean().clamp_min(1e-30)
    moved = to_double(x - y).square().sum(-1).mean() / energy
    return float(moved), len(x)


def _single_kl(p: Tensor, q: Tensor, row: Tensor, position: Tensor) -> Tensor:
    """KL(p ‖ q) at some positions, in single precision: Σ softmax(p) (p − q) + log Σ exp q − log Σ exp p of scores.

    Few passes over vocabularies: this is most of what a probe costs.
    """
    p, q = (scores[row, position].float() for scores in (p, q))
    shift = torch.linalg.vecdot(p.softmax(-1), p - q)
    return (shift + q.logsumexp(-1) - p.logsumexp(-1)).clamp_min(0)


def at_once(scores: Tensor) -> int:
    """How many distributions are compared at once. A few: passes over whole vocabularies of many positions would fetch
    them from memory again and again."""
    return max(1, NUMBERS // scores.shape[-1])


def real_positions(mask: Tensor | None, rows: Tensor) -> Tensor:
    """Which positions of a batch are not padding."""
    return torch.ones_like(rows[..., 0], dtype=torch.bool) if mask is None else mask.to(rows.device)

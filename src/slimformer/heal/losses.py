"""How far the outputs of a student are from its teacher's, as a loss that can be learned from.

Scores to choose by (language models, masked or not, classifiers; start and end of an answer), p the teacher's, q the
student's distribution at every real position:

    L = E Σ_c p_c (log p_c − log q_c)         in nats

A number (regression):              L = Σ (x − y)² / Σ x²
States (encoders without a head):   L = E ‖x − y‖² / E ‖x‖² + E [1 − cos(x̄, ȳ)],   x̄ the mean over a row's positions

The first is what a report calls KL; the last has both what is read token by token and what is pooled.
References: Hinton, Vinyals, Dean (2015); Reimers, Gurevych (2020).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from slimformer.models.outputs import has_outcomes, outcomes, real_positions

LEAST = 1e-12


def distillation_loss(teacher: Any, student: Any, mask: Tensor | None) -> tuple[Tensor, int]:
    """The mean loss of one batch, and over how many outputs it is the mean. Cost: a few passes over the outputs."""
    if has_outcomes(teacher):
        p, counted = outcomes(teacher, mask)
        q, _ = outcomes(student, mask)
        return _kl(p[counted], q[counted.to(q.device)]), int(counted.sum())
    if "logits" in teacher:
        x, y = teacher.logits.float(), student.logits.float()
        return (x - y).square().sum() / x.square().sum().clamp_min(LEAST), len(x)
    x, y = teacher.last_hidden_state.float(), student.last_hidden_state.float()
    real = real_positions(mask, x)
    rows = real.any(1)
    moved = (x - y)[real].square().sum() / x[real].square().sum().clamp_min(LEAST)
    pooled = [(states * real[..., None]).sum(1)[rows] for states in (x, y)]  # a cosine does not see the length
    return moved + (1 - cosine_similarity(*pooled)).mean(), int(rows.sum())


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """E KL(p ‖ q) of scores (positions × outcomes): cross entropy less entropy."""
    p, q = p.float(), q.float()
    likely = p.softmax(-1)
    entropy = -torch.linalg.vecdot(likely, p.log_softmax(-1)).mean()
    return cross_entropy(q, likely) - entropy

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
from torch.nn.functional import cosine_similarity

from slimformer.models.outputs import has_outcomes, outcomes, real_positions

LEAST = 1e-12
AT_ONCE = 128  # positions whose outcomes are compared together


def distillation_loss(
    teacher: Any, student: Any, mask: Tensor | None, more: Tensor | None = None
) -> tuple[Tensor, int]:
    """The mean loss of one batch, and over how many outputs it is the mean. Where the scores are of some words only,
    `more` is added to those of both. Cost: a few passes over the outputs."""
    if has_outcomes(teacher):
        p, counted = outcomes(teacher, mask)
        q, _ = outcomes(student, mask)
        if not counted.all():
            p, q = p[counted], q[counted.to(q.device)]
        p, q = p.flatten(0, -2).to(q.device), q.flatten(0, -2)
        if more is not None:
            p, q = (scores + more.to(scores) for scores in (p, q))
        return _Divergence.apply(p, q), len(q)  # type: ignore[no-untyped-call]
    if "logits" in teacher:
        x, y = teacher.logits.float(), student.logits.float()
        return (x - y).square().sum() / x.square().sum().clamp_min(LEAST), len(x)
    x, y = teacher.last_hidden_state.float(), student.last_hidden_state.float()
    real = real_positions(mask, x)
    rows = real.any(1)
    moved = (x - y)[real].square().sum() / x[real].square().sum().clamp_min(LEAST)
    pooled = [(states * real[..., None]).sum(1)[rows] for states in (x, y)]  # a cosine does not see the length
    return moved + (1 - cosine_similarity(*pooled)).mean(), int(rows.sum())


class _Divergence(torch.autograd.Function):
    """E KL(p ‖ q) of scores (positions × outcomes), and (q − p) / n, its gradient at the scores of q.

    A few positions at a time: vocabularies are long, and nothing of their length is kept but that gradient.
    """

    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor) -> Tensor:
        moved = torch.empty_like(q) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), device=q.device)
        for i in range(0, len(q), AT_ONCE):
            rows = slice(i, i + AT_ONCE)
            log_p, log_q = (scores[rows].float().log_softmax(-1) for scores in (p, q))
            likely = log_p.exp()
            total += torch.linalg.vecdot(likely, log_p.sub_(log_q)).sum()
            if moved is not None:
                moved[rows] = log_q.exp_().sub_(likely).div_(len(q))
        ctx.save_for_backward(moved)
        return total / len(q)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (moved,) = ctx.saved_tensors
        return None, moved.mul_(gradients[0])

"""What the teacher said, kept on disk: of every distribution its k likeliest outcomes, so that it runs once for a text.

With p the teacher's distribution, q the student's, and T the k outcomes that p likes best, the loss compares those k
and all others together,

    L = Σ_{c∈T} p_c (log p_c − log q_c) + p_rest (log p_rest − log q_rest),      p_rest = 1 − Σ_{c∈T} p_c,

which is at most KL(p ‖ q), and equal to it where T is everything. Cost: 6 k bytes for a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slimformer.checkpoint.atomic import replacing
from slimformer.files.seals import read_sealed, save_sealed
from slimformer.heal.losses import AT_ONCE
from slimformer.models.outputs import outcomes

LEAST = 1e-9  # what single precision can say of the rest


@dataclass(frozen=True)
class Remembered:
    """The k likeliest outcomes of a teacher for every batch of a text, in a folder; asked for when not yet there."""

    folder: Path
    k: int

    @torch.no_grad()
    def of(self, number: int, teacher: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Log-probabilities (positions × k, likeliest first) and which outcomes they are of, of the batch `number`."""
        file, mask = self.folder / f"{number:06d}.safetensors", inputs.get("attention_mask")
        device = next(iter(inputs.values())).device
        try:
            tensors, _ = read_sealed(file)
        except (OSError, ValueError):  # not there, or spoilt
            scores, counted = outcomes(teacher(**inputs), None if mask is None else mask.bool())
            log_p = scores[counted].float().log_softmax(-1).topk(min(self.k, scores.shape[-1]), -1)
            tensors = {"log_p": log_p.values.half(), "outcome": log_p.indices.int()}
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(file) as partial:
                save_sealed(tensors, partial, {})
        return tensors["log_p"].float().to(device), tensors["outcome"].long().to(device)


def remembered_loss(known: tuple[Tensor, Tensor], student: Any, mask: Tensor | None) -> Tensor:
    """The mean of L over the positions of a batch. Cost: a pass over the scores of the student."""
    q, counted = outcomes(student, mask)
    return _CoarseDivergence.apply(*known, q[counted])  # type: ignore[no-any-return,no-untyped-call]


class _CoarseDivergence(torch.autograd.Function):
    """E L and its gradient at the scores of q: q_c − p_c in T, and q_c (1 − p_rest / q_rest) elsewhere."""

    @staticmethod
    def forward(ctx: Any, log_p: Tensor, outcome: Tensor, q: Tensor) -> Tensor:
        moved = torch.empty_like(q) if ctx.needs_input_grad[2] else None
        total = torch.zeros((), device=q.device)
        for i in range(0, len(q), AT_ONCE):
            rows = slice(i, i + AT_ONCE)
            p, log_q = log_p[rows].exp(), q[rows].float().log_softmax(-1)
            log_q_known = log_q.gather(1, outcome[rows])
            p_rest, q_rest = ((1 - part.sum(1)).clamp_min(LEAST) for part in (p, log_q_known.exp()))
            total += torch.where(p > 0, p * (log_p[rows] - log_q_known), 0.0).sum()
            total += (p_rest * (p_rest.log() - q_rest.log())).sum()
            if moved is not None:
                share = log_q.exp() * (1 - p_rest / q_rest)[:, None]
                moved[rows] = share.scatter(1, outcome[rows], log_q_known.exp() - p).div_(len(q))
        ctx.save_for_backward(moved)
        return total / len(q)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor]:
        (moved,) = ctx.saved_tensors
        return None, None, moved.mul_(gradients[0])

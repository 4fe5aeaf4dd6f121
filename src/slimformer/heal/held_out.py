"""What decides whether healing helped: the loss on the select split, on the user's own text and on broad text apart.

Broad text of the select split is of sources that nobody fits, so what is worse there is likely to be worse elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.gather import Data
from slimformer.calibrate.text import Batch
from slimformer.evaluate.compare import first_tokens
from slimformer.heal.losses import distillation_loss
from slimformer.models import describe
from slimformer.models.walk import plain_call

TOKENS = {"own": 4096, "broad": 2048}  # measured on
IMAGE = 32


@dataclass(frozen=True)
class HeldOut:
    """Batches that choices are made on, by the text they are of."""

    parts: Mapping[str, Sequence[Batch]]

    @torch.no_grad()
    def losses(self, teacher: PreTrainedModel, student: PreTrainedModel) -> dict[str, float]:
        """The mean loss on every part. Cost: one forward pass of both."""
        by_text = {}
        was_training = student.training
        student.eval()
        for name, batches in self.parts.items():
            pairs = [batch_loss(teacher, student, batch) for batch in batches]
            by_text[name] = sum(loss * n for loss, n in pairs) / max(1, sum(n for _, n in pairs))
        student.train(was_training)
        return by_text


def batch_loss(teacher: PreTrainedModel, student: PreTrainedModel, batch: Batch) -> tuple[float, int]:
    """The loss of one batch, and over how many outputs it is the mean."""
    here, call = batch.to(teacher.device), plain_call(describe(teacher))
    loss, n = distillation_loss(teacher(**here.inputs, **call), student(**here.inputs, **call), here.mask)
    return float(loss), n


def mean_share(now: Mapping[str, float], start: Mapping[str, float]) -> float:
    """The mean over texts of losses relative to those at the start."""
    shares = [now[name] / start[name] for name in start if start[name] > 0]
    mean = sum(shares) / len(shares) if shares else 1.0
    return mean if math.isfinite(mean) else math.inf


def score(now: Mapping[str, float], start: Mapping[str, float]) -> float:
    """The same, beyond all bounds where any text has become worse. Less than one: better, and on no text worse."""
    better = all(now[name] <= start[name] for name in start)  # not >: NaN is no gain
    return mean_share(now, start) if better else math.inf


def held_out(data: Data) -> HeldOut:
    """Some of the select split; its broad part is what is not the user's own."""
    select, own = data.splits["select"], data.own.get("select")
    if own is None:
        return HeldOut({"own": _first(select, TOKENS["own"])})
    known = {row for batch in own for row in _rows(batch)}
    broad = []
    for batch in select:
        fresh = torch.tensor([row not in known for row in _rows(batch)])
        if fresh.any():
            broad.append(_picked(batch, fresh))
    return HeldOut({"own": _first(own, TOKENS["own"]), "broad": _first(broad, TOKENS["broad"])})


def _rows(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(row) for row in next(iter(batch.inputs.values())).tolist()]


def _picked(batch: Batch, rows: torch.Tensor) -> Batch:
    inputs = {name: tensor[rows] for name, tensor in batch.inputs.items()}
    return Batch(inputs, None if batch.mask is None else batch.mask[rows])


def _first(batches: Sequence[Batch], tokens: int) -> list[Batch]:
    """The first batches that hold so many tokens together; an image counts for `IMAGE` of them."""
    text = bool(batches) and batches[0].mask is not None
    return first_tokens(batches, tokens if text else tokens // IMAGE)

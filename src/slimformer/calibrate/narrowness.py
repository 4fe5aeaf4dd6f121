"""How narrow is a calibration text? The share of broad text in directions that it hardly shows, block by block.

Rows h of what a block reads are scaled to length 1, as the norm before the block does. C' is the covariance of broad
text, C the second moment of the calibration text about the same mean: rows share a large common part, which says
nothing of any text. With C u = λ C' u a direction of broad text is *unseen* where λ < 1/10, and

    outside = Σ_{λ_i < 1/10} v_i / Σ v_i,     v_i the variance of broad text along u_i (u_i orthonormal for C'^½).

Only the leading directions of C' take part, 99 % of its variance and at most one for every eight rows: along the others
a sample of any text shows little. A finite sample leaves some of its own kind of text outside, too, so the share is
given for held-out text of the same kind beside it.
Cost: one forward pass over a few thousand tokens of each, and two eigenvalue problems of D × D for every block.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.gather import Data
from slimformer.calibrate.text import Batch
from slimformer.linalg.moments import Moments
from slimformer.models import describe
from slimformer.models.hooks import listening
from slimformer.models.walk import stack_rows

TOKENS = 4096  # of each text
UNSEEN = 0.1  # of the variance of broad text along a direction: below it the calibration text hardly shows it
LEADING, ROWS = 0.99, 8  # directions that take part: of the variance, and rows for each
NARROW = 2.0  # a text is called narrow when broad text is outside it so many times as much as text of its own kind
LEAST = 0.08  # and by a share that matters; a web sample is at .07 for MiniLM, stories at .23


@dataclass(frozen=True)
class Narrowness:
    """Shares in directions that a text hardly shows, by block: of held-out text of its kind, and of broad text."""

    home: tuple[float, ...]
    broad: tuple[float, ...]

    @property
    def narrow(self) -> bool:
        return sum(self.broad) > max(NARROW * sum(self.home), LEAST * len(self.broad))

    def line(self, name: str) -> str:
        """One line for a reader who decides whether to add text."""
        home, broad = (sum(shares) / len(shares) for shares in (self.home, self.broad))
        worst = max(range(len(self.broad)), key=self.broad.__getitem__)
        verdict = "narrow" if self.narrow else "broad enough"
        return (
            f"{name} is {verdict}: {broad:.0%} of broad text lies in directions it hardly shows "
            f"({self.broad[worst]:.0%} in block {worst}), of held-out text of its own kind {home:.0%}"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "narrow": self.narrow}


def narrowness_noted(model: PreTrainedModel, data: Data) -> Data:
    """The data with a note on how narrow a user's own text is, beside the broad text that is only measured on.

    It is said at once, before the long work. The built-in text itself is not looked at, nor are images and token ids.
    """
    if not data.own or not data.other:
        return data
    try:
        shares = narrowness(model, data.own["fit"], data.own["select"], _in_turn(list(data.other.values())))
    except torch.linalg.LinAlgError:  # of states that are not finite; calibration says where
        return data
    line = shares.line(data.name)
    logging.getLogger("slimformer").log(logging.WARNING if shares.narrow else logging.INFO, line)
    return replace(data, notes=(*data.notes, line))


def _in_turn(parts: Sequence[Sequence[Batch]]) -> list[Batch]:
    """One batch of each, then another of each: so that the first tokens are of every source."""
    return [batch for round in zip_longest(*parts) for batch in round if batch is not None]


@torch.no_grad()
def narrowness(
    model: PreTrainedModel, fit: Sequence[Batch], held: Sequence[Batch], broad: Sequence[Batch]
) -> Narrowness:
    """Shares outside what `fit` shows, for other text of its kind (`held`) and for `broad` text."""
    seen, own, other = (_moments(model, batches) for batches in (fit, held, broad))
    return Narrowness(*(tuple(map(outside, seen, moments)) for moments in (own, other)))


def outside(seen: Moments, other: Moments) -> float:
    """The share of `other` in directions that `seen` hardly shows: 0 where it shows all of them, 1 where none."""
    mean = other.mean
    C_other = other.second(centred=True)
    shift = seen.mean - mean
    C = seen.second(centred=True) + shift[:, None] * shift
    w, V = (part.flip(-1) for part in torch.linalg.eigh(C_other))
    leading = int((w.cumsum(0) < LEADING * w.sum()).sum()) + 1
    k = max(1, min(leading, min(seen.count, other.count) // ROWS))
    w, V = w[:k].clamp_min(1e-30), V[:, :k]
    ratios, U = torch.linalg.eigh(V.mT @ C @ V / (w[:, None] * w).sqrt())
    along = (U.square() * w[:, None]).sum(0)
    return float(along[ratios < UNSEEN].sum() / along.sum())


def _moments(model: PreTrainedModel, batches: Sequence[Batch]) -> list[Moments]:
    """Of rows of length 1 before every block, over real positions."""
    sums, architecture = list[Moments](), describe(model)
    was_training = model.training
    model.eval()
    for batch in batches:
        if sums and sums[0].count >= TOKENS:
            break
        here = batch.to(model.device)
        states: list[Tensor] = []
        with listening(model, inputs={block.path: states.append for block in architecture.blocks}):
            model.base_model(**here.inputs)  # the head of a language model costs as much as its blocks
        layouts = [architecture.layout(block.sites[0]) for block in architecture.blocks]
        masks = [stack_rows(here, state, layout) for state, layout in zip(states, layouts, strict=True)]
        moments = [Moments.of(_unit_rows(*both).cpu().double()) for both in zip(states, masks, strict=True)]
        sums = [a + b for a, b in zip(sums, moments, strict=True)] if sums else moments
    model.train(was_training)
    return sums


def _unit_rows(state: Tensor, mask: Tensor | None) -> Tensor:
    X = (state.flatten(0, 1) if mask is None else state[mask]).float()
    return X / X.norm(dim=1, keepdim=True).clamp_min(1e-12)

"""How narrow is a calibration text? The share of broad text that lies outside what it spans, block by block.

With C = E h hᵀ the second moments of what a block reads on the calibration text, each row h scaled to length 1 as the
norm before the block does, and C' those of broad text, the part of it that least squares on C does not see is

    o(C') = λ tr(C' (C + λI)⁻¹) / tr C',     λ = ridge · tr C / D.

Directions that the calibration text shows count almost nothing, directions it never shows count whole. A finite sample
leaves some of its own kind of text outside, too, so o is given for held-out text of the same kind beside it.
Cost: one forward pass over a few thousand tokens of each, and a factorisation of D × D for every block.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.gather import Data
from slimformer.calibrate.text import Batch
from slimformer.linalg.damped import damped, damping

TOKENS = 4096  # of each text
RIDGE = 1e-3
NARROW = 2.0  # a text is called narrow when broad text is outside it so many times as much as text of its own kind
LEAST = 0.02  # and by a share that matters


@dataclass(frozen=True)
class Narrowness:
    """Shares of energy outside the span of a text, by block: of held-out text of its kind, and of broad text."""

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
            f"{name} is {verdict}: {broad:.0%} of broad text lies outside what it spans ({self.broad[worst]:.0%} in "
            f"block {worst}), of held-out text of its own kind {home:.0%}"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "narrow": self.narrow}


def narrowness_noted(model: PreTrainedModel, data: Data) -> Data:
    """The data with a note on how narrow a user's own text is, beside the broad text that is only measured on.

    A narrow one is warned of at once, before the long work. The built-in text itself is not looked at.
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
    """Shares outside the span of `fit`, for other text of its kind (`held`) and for `broad` text."""
    seen, own, other = (_second_moments(model, batches) for batches in (fit, held, broad))
    return Narrowness(*(tuple(map(outside, seen, moments)) for moments in (own, other)))


def outside(C: Float[Tensor, "D D"], C_other: Float[Tensor, "D D"], ridge: float = RIDGE) -> float:
    """λ tr(C' (C + λI)⁻¹) / tr C': 0 where C spans all of C', 1 where it spans nothing of it."""
    L = torch.linalg.cholesky(damped(C, ridge))
    left = torch.cholesky_solve(C_other, L).diagonal().sum() * damping(C, ridge)
    return float((left / C_other.diagonal().sum().clamp_min(1e-30)).clamp(0, 1))


def _second_moments(model: PreTrainedModel, batches: Sequence[Batch]) -> list[Float[Tensor, "D D"]]:
    """E h hᵀ before every block, over real positions, rows of length 1."""
    sums: list[Tensor] = []
    count = 0
    was_training = model.training
    model.eval()
    for batch in batches:
        if count >= TOKENS:
            break
        here = batch.to(model.device)
        states = model(**here.inputs, output_hidden_states=True).hidden_states[:-1]
        rows = [_unit_rows(state, here.mask) for state in states]
        grams = [(X.mT @ X).cpu().double() for X in rows]
        sums = [a + b for a, b in zip(sums, grams, strict=True)] if sums else grams
        count += len(rows[0])
    model.train(was_training)
    return [total / max(count, 1) for total in sums]


def _unit_rows(state: Tensor, mask: Tensor | None) -> Tensor:
    X = (state.flatten(0, 1) if mask is None else state[mask]).float()
    return X / X.norm(dim=1, keepdim=True).clamp_min(1e-12)

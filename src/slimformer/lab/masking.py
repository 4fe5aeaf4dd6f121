"""Masked language modelling (Devlin et al. 2019): which tokens are to be guessed, and what stands in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slimformer.errors import BadExperiment

IGNORED = -100  # the label losses skip
MASKED, SWAPPED = 0.8, 0.1  # of the tokens to guess: hidden, replaced by any other; the rest stays as it is


@dataclass(frozen=True)
class Masking:
    """Draws the tokens to guess among the ordinary ones: never a pad, never a mark such as [SEP]."""

    share: float
    mask: int
    ordinary: Tensor  # ids that stand for text
    is_mark: Tensor  # by id

    @staticmethod
    def of(tokenizer: Any, share: float) -> Masking:
        """For a tokenizer that has a mask."""
        if tokenizer.mask_token_id is None:
            raise BadExperiment("the tokenizer has no mask token; train one (wordpiece, bpe), or name another")
        is_mark = torch.zeros(len(tokenizer), dtype=torch.bool)
        is_mark[torch.tensor(tokenizer.all_special_ids)] = True
        return Masking(share, tokenizer.mask_token_id, torch.nonzero(~is_mark).flatten(), is_mark)

    def __call__(self, ids: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Ids with some hidden, and labels: the hidden ids, −100 elsewhere."""
        ids = ids.long()
        masked = (torch.rand(ids.shape, generator=draw) < self.share) & ~self.is_mark[ids]
        labels = torch.where(masked, ids, IGNORED)
        fate = torch.rand(ids.shape, generator=draw)
        others = self.ordinary[torch.randint(len(self.ordinary), ids.shape, generator=draw)]
        shown = torch.where(masked & (fate < MASKED), self.mask, ids)
        return torch.where(masked & (fate >= MASKED) & (fate < MASKED + SWAPPED), others, shown), labels

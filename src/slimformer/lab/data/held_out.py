"""A share of the examples held out, the same at every run and on every machine.

An example is held out by the hash of its content, so that two copies of it are on one side, whatever their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from slimformer.errors import TooFewExamples


def held_out(contents: Sequence[bytes], share: float) -> tuple[Tensor, Tensor]:
    """Indices to train on and to validate on; of the latter `share`, up to copies. O(n log n)."""
    keys = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
    order = sorted(set(keys))
    behind = set(order[: max(1, round(share * len(order)))])
    validation = torch.tensor([key in behind for key in keys], dtype=torch.bool)
    if validation.all():
        raise TooFewExamples(f"{len(keys)} examples are too few to hold a share of {share:g} out; give more")
    return torch.nonzero(~validation).flatten(), torch.nonzero(validation).flatten()


def subset(n: int, most: int | None) -> Tensor:
    """Indices of `most` of n examples, drawn once for all runs, in their order; all of them without a limit."""
    if most is None or most >= n:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:most].sort().values

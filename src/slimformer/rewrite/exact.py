"""What a rewrite that changes no output is made of: where it may not be used, what it finds, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from slimformer.models import Architecture, Site

# Shares below these are rounding noise of weights stored in that precision.
RTOL = {torch.float64: 1e-12, torch.float32: 5e-7}
EXACT = 1e-14  # half precision is never added up, so nothing but zeros may pass for zero


@dataclass(frozen=True)
class Scope:
    """What may be done: in which format the result is stored and how precisely, and what neurons are a multiple of."""

    format: str = "ragged"
    dtype: torch.dtype = torch.float32
    multiple_of: int = 1

    @property
    def rtol(self) -> float:
        return RTOL.get(self.dtype, EXACT)

    @property
    def half(self) -> bool:
        """Would sums be rounded when they are stored?"""
        return self.dtype not in RTOL

    @property
    def rounds(self) -> str:
        """Why nothing can be added up, where that is so."""
        kind = str(self.dtype).removeprefix("torch.")
        return f"weights are stored in {kind}, which would round the sums" if self.half else ""


@dataclass(frozen=True)
class Change:
    """What a rewrite would do to one site: the site it leaves, and the doing.

    `implicit` numbers become 0 or 1 and are stored and multiplied all the same.
    """

    after: Site
    carry_out: Callable[[], None]
    implicit: int = 0


@dataclass(frozen=True)
class Rewrite:
    """A rewrite: `forbidden` says why it is not offered ("" where it is), `find` what it would do, site by site."""

    says: str
    forbidden: Callable[[PreTrainedModel, Architecture, Scope], str]
    find: Callable[[PreTrainedModel, Architecture, Scope], Iterator[Change]]
    note: str = ""

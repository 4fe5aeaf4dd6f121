"""Rows of length one."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def unit_rows(X: Float[Tensor, "*n q"]) -> Float[Tensor, "*n q"]:
    """x / |x|; nothing stays nothing."""
    return X / X.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(X.dtype).tiny ** 0.5)

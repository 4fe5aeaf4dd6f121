"""Double precision, wherever a tensor is."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def to_double(X: Tensor) -> Tensor:
    """X in float64: where it is, or on the CPU if its device has no such numbers, as Apple's has not."""
    return (X if has_double(X.device.type) else X.cpu()).double()


@functools.cache
def has_double(device: str) -> bool:
    """Whether a kind of device has double precision."""
    try:
        torch.empty(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True

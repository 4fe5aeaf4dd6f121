"""Relative damping: nothing is ever inverted without it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

RTOL_FLOOR = 1e-12  # keeps an all-but-singular Gram matrix factorisable in double precision


def damping(C: Float[Tensor, "d d"], relative: float) -> float:
    """λ = relative · mean diagonal, so that the choice does not depend on the scale of the data."""
    scale = float(C.diagonal().mean())
    return max(relative, RTOL_FLOOR) * (scale if scale > 0 else 1.0)


def damped(C: Float[Tensor, "d d"], relative: float) -> Float[Tensor, "d d"]:
    """C + λI with λ = relative · mean diagonal."""
    return C + damping(C, relative) * torch.eye(len(C), dtype=C.dtype, device=C.device)

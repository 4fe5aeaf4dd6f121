"""Relative damping: nothing is ever inverted without it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

RTOL_FLOOR = 1e-12  # keeps an all-but-singular Gram matrix factorisable in double precision
RTOL_SINGLE = 1e-4  # well above the eigenvalues below zero that products in single precision leave, about −10⁻⁶


def damping(C: Float[Tensor, "d d"], relative: float) -> float:
    """λ = relative · mean diagonal, so that the choice does not depend on the scale of the data."""
    scale = float(C.diagonal().mean())
    return max(relative, RTOL_FLOOR) * (scale if scale > 0 else 1.0)


def damped(C: Float[Tensor, "d d"], relative: float) -> Float[Tensor, "d d"]:
    """C + λI with λ = relative · mean diagonal.

    Where rows are fewer than coordinates C is singular, and products in single precision push eigenvalues below zero. A
    λ that does not lift all of them to λ/2 at least is multiplied by ten until it does.
    """
    while relative < RTOL_SINGLE and torch.linalg.cholesky_ex(_lifted(C, damping(C, relative) / 2)).info:
        relative = 10 * max(relative, RTOL_FLOOR)
    return _lifted(C, damping(C, relative))


def _lifted(C: Float[Tensor, "d d"], λ: float) -> Float[Tensor, "d d"]:
    """C + λI, in one copy: wide layers have matrices of which few fit into memory."""
    out = C.clone()
    out.diagonal().add_(λ)
    return out

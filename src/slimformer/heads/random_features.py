"""A fixed random layer before the ridge: φ(x) = max(0, x R), R standard normal, drawn once from a seed.

Ridge on φ is a kernel machine with M features (arc-cosine kernel of order one) whose moments still add up. φ is
homogeneous, so the scale of x does not matter; moments take M² memory and rows M² time each.

References: Cho, Saul (2009); McDonnell, Gong, Parvaneh, Abbasnejad, van den Hengel (2023), RanPAC.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def projection(d: int, M: int, seed: int) -> Float[Tensor, "d M"]:
    """R / √d for this seed; the same on every machine."""
    return torch.randn(d, M, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / d**0.5


def lifted(X: Float[Tensor, "n d"], R: Float[Tensor, "d M"]) -> Float[Tensor, "n M"]:
    """φ of every row. Cost n d M."""
    return (X @ R).clamp(min=0)

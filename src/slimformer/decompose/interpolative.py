"""Interpolative decomposition, as STAT uses it.

Problem: choose k columns of the activations X (n × d) such that the others are combinations of them, X ≈ X_J Eᵀ.
Neurons: columns are scaled by the norm of what reads them, w_j = ‖W_:j‖, and column-pivoted QR of X diag(w) gives
order and |r_jj|. Only G = XᵀX is needed (see `linalg.pivoted_cholesky`). Heads: a head is one column, with a row
for every token and every coordinate of the head; pivoted QR of that tall matrix gives the order, that is, pivots of
the h × h matrix G_ab = Σ_i C[(a, i), (b, i)]. The transfer is least squares in both cases.

Cost O(k d²) after the moments.
Reference: Flynn, Wang, Alvarez, De Sa, Damle, STAT: Shrinking Transformers After Training (arXiv 2406.00061).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.decompose.reduction import (
    Curve,
    Width,
    coordinates,
    curve,
    errors_at_every_size,
    legal_sizes,
    may_join,
)
from slimformer.linalg.pivoted_cholesky import constrained_pivots, pivots


def interpolative(width: Width, *, ridge: float) -> Curve:
    """Units in the order of pivoted QR, best first, and the error left at every size."""
    if width.unit == 1:
        return _neurons(width, ridge)
    C = width.fit.second(centred=width.bias)
    order, r = constrained_pivots(head_gram(C, width.unit), lambda J: may_join(J, width.units, width.group))
    return curve(width, "interpolative", order.tolist(), ridge=ridge, pivots=r.tolist())


def head_gram(C: Float[Tensor, "d d"], unit: int) -> Float[Tensor, "h h"]:
    """Inner products of heads, each taken as one long column: G_ab = tr C_ab."""
    h = len(C) // unit
    return torch.einsum("aibi->ab", C.reshape(h, unit, h, unit))


def _neurons(width: Width, ridge: float) -> Curve:
    C = width.fit.second(centred=width.bias)
    w = width.W.double().norm(dim=0)
    order, r = pivots(w[:, None] * C * w)
    sizes, _ = legal_sizes(width.units, width.group)
    (left,) = errors_at_every_size(torch.diag(w), coordinates(order.tolist(), 1), C, (C,), ridge)
    tail = left[torch.tensor(sizes)].sqrt()
    return curve(width, "interpolative", order.tolist(), ridge=ridge, pivots=r.tolist(), tail=tail.tolist())

"""Backward elimination of units: the default way to choose what to keep.

Problem: choose k units such that the reader W, refitted by least squares on them, loses least:

    E(J) = min_A E ‖W x − A x_J‖².

Dropping units one at a time, always the one that costs least after the refit of all others, is exact in every step
(`linalg.elimination`) and sees what pivoted QR does not: that two neurons may be told apart by x and not by W.
Heads are dropped as blocks; under grouped queries one query of every group goes before the first group does.

Cost O(d² (d + m)) once, for every size.
Reference: Hassibi & Stork (1993); Frantar & Alistarh, Optimal Brain Compression (2022).
"""

from __future__ import annotations

from slimformer.decompose.reduction import Curve, Width, curve, may_leave
from slimformer.linalg.elimination import eliminate, eliminate_blocks

# In the order, λ charges a unit λ ‖w‖² for leaving, however quiet it is: with that of the refit, quiet and dead units
# would outlive loud ones. It only has to keep the inverse well-posed.
RIDGE = 1e-6


def elimination(width: Width, *, ridge: float) -> Curve:
    """Units in the order of their worth, best first, and the error left at every size."""
    W, careful = width.W.double(), min(ridge, RIDGE)
    if width.unit == 1:  # nobody else holds the second moments, so that they can go when they were inverted
        order = eliminate(width.fit.second(centred=width.bias), W, ridge=careful)[0].tolist()
    else:
        C = width.fit.second(centred=width.bias)
        order = eliminate_blocks(C, W, unit=width.unit, allowed=lambda S: may_leave(S, width.group), ridge=careful)
    return curve(width, "elimination", order, ridge=ridge)

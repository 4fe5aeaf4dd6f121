"""Neurons that can be told from the weights alone to be superfluous: constant ones, and copies of others.

A neuron writes a(wᵀx + b), or a(gᵀx + c) · (uᵀx + e) with a gate, and its reader adds W₂[:, j] times that.

Constant. A row of zeros writes a(b) whatever x is; the output bias absorbs W₂[:, j] a(b). A ReLU that never fires
writes 0. Behind a norm x = γ ∘ n + β with |n|² ≤ D (and Σ n = 0 where the mean is taken off), so over all inputs

    max wᵀx + b ≤ √D ‖P (γ ∘ w)‖ + wᵀβ + b,        P takes the mean off, or is I.

Where that is not positive, no data could make the neuron fire. Without a norm in front there is no such bound.

Copies. Neurons with the same writer rows write the same, and W₂ may add up their columns. ReLU is homogeneous, so rows
may differ by a factor c > 0; with a gate the other row may differ by any c ≠ 0. The column then counts c times.

Scales. For the same reason w ← c w, W₂[:, j] ← W₂[:, j] / c changes nothing. c is a power of two, so no bit is lost.

Cost O(n D) each, and a sort for copies. What never fired on some data is another matter: it is no property of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Rows = Float[Tensor, "n p"]  # of a writer: weights, then the bias in the last column


def constants(
    writers: Sequence[Rows], activation: Callable[[Tensor], Tensor], *, never: Bool[Tensor, " n"] | None = None
) -> Float[Tensor, " n"]:
    """What every neuron writes if it always writes the same, NaN for others. With two writers the first is the gate.

    `never` marks ReLUs that never fire.
    """
    fixed = [~rows[:, :-1].any(1) for rows in writers]
    values = [activation(writers[0][:, -1].double()), *(rows[:, -1].double() for rows in writers[1:])]
    if never is not None:
        fixed[0], values[0] = fixed[0] | never, values[0].where(~never, 0.0)
    product = torch.stack(values).prod(0)
    known = torch.stack(fixed).all(0)
    zero = torch.stack([f & (v == 0) for f, v in zip(fixed, values, strict=True)]).any(0)
    return product.where(known, torch.nan).where(~zero, 0.0)


def never_fires(
    rows: Rows, gain: Float[Tensor, " D"], shift: Float[Tensor, " D"] | None, *, centred: bool
) -> Bool[Tensor, " n"]:
    """Rows whose wᵀx + b is negative for every x a norm with this gain and shift can give; rounding is allowed for."""
    W, b = rows[:, :-1].double(), rows[:, -1].double()
    spread = W * gain.double()
    if centred:
        spread = spread - spread.mean(1, keepdim=True)
    most = spread.norm(dim=1) * W.shape[1] ** 0.5
    rest = b if shift is None else b + W @ shift.double()
    return most + rest < -1e-6 * (most + rest.abs())


def canonical(writers: Sequence[Rows], *, homogeneous: bool) -> tuple[Float[Tensor, "n q"], Float[Tensor, " n"]]:
    """Rows of all writers side by side, without the factor that could move to the reader, and that factor."""
    *fixed, free = [rows.double() for rows in writers]
    scale = free.new_ones(len(free))
    if fixed or homogeneous:
        size = free.norm(dim=1)
        lead = free.gather(1, free.abs().argmax(1, keepdim=True))[:, 0].sign() if fixed else torch.ones_like(size)
        scale = torch.where(size > 0, lead * size, 1.0)
    return torch.cat([*fixed, free / scale[:, None]], 1), scale


def copies(keys: Float[Tensor, "n q"], *, rtol: float) -> Int[Tensor, " n"]:
    """For every row the number of a row it equals up to rounding, its own for all but copies.

    Rows are sorted along one direction, so that only neighbours are compared: O(n q + n log n).
    """
    if not len(keys):  # a part that is all linear path
        return torch.zeros(0, dtype=torch.long, device=keys.device)
    generator = torch.Generator().manual_seed(0)
    along = keys @ torch.randn(keys.shape[1], generator=generator, dtype=keys.dtype).to(keys.device)
    order = along.argsort(stable=True)
    ranked = keys[order]
    apart = (ranked[1:] - ranked[:-1]).abs().amax(1) > rtol * ranked[1:].abs().amax(1)
    starts = torch.cat([apart.new_ones(1), apart])  # of runs of equal rows
    first = order[starts][starts.long().cumsum(0) - 1]
    return torch.empty_like(order).scatter_(0, order, first)


def power_scales(write: Float[Tensor, " n"], read: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Powers of two that bring norms of writer rows and reader columns together: c = 2^round(½ log₂(read / write))."""
    usable = (write > 0) & (read > 0)
    half = 0.5 * torch.log2(read.double().where(usable, 1.0) / write.double().where(usable, 1.0))
    return torch.exp2(half.round())

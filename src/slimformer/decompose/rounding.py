"""Weights on a grid of few values: to the nearest, or so that later columns make up for what earlier ones lose.

    ŵ = s (q − z),    q ∈ {−2ᵇ⁻¹, …, 2ᵇ⁻¹ − 1},    one step s (and one zero z) for every `group` columns of a row

A symmetric grid has z = 0 and s = max |w| / (2ᵇ⁻¹ − 1); an asymmetric one spans from the lowest weight to the highest,
zero included. Steps are kept with eight significant bits (bfloat16), so that s q is exact in single precision.

Error-compensated rounding is `decompose.compensation` with "settle" = "round to the grid". Where columns are taken in
their own order, the grid of a group is laid when its first column is reached, over weights that have made up for the
ones before; where the columns with the most energy are taken first, grids are laid at the start (a file then needs no
list of which column belongs to which group). A weight that is exactly zero stays so, whatever the others ask of it: z
is a code of every grid, and a pattern of zeros outlives rounding.

Frantar, Ashkboos, Hoefler, Alistarh: GPTQ, arXiv 2210.17323.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from slimformer.decompose.compensation import DAMPING, compensate, damped_root, whole_groups

TINY = 2.0**-60  # the step of a group that holds nothing but zeros


@dataclass(frozen=True)
class Grid:
    """How finely weights are stored: `bits` each, a step for every `group` columns of a row (none: for the row)."""

    bits: int
    group: int | None = None
    symmetric: bool = True

    @property
    def low(self) -> int:
        return -(2 ** (self.bits - 1))

    @property
    def high(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def width(self, d: int) -> int:
        """Columns that share a step, in a row of d: the largest divisor of d from group / 2 to group, else all of d."""
        wanted = self.group or d
        fitting = [g for g in range(min(wanted, d), 0, -1) if d % g == 0 and 2 * g >= wanted]
        return fitting[0] if fitting else d

    def shared(self, widths: Iterable[int]) -> Grid:
        """The grid on which rows of all these widths have steps for equally many weights; for rows, where none fits."""
        g = self.width(math.gcd(*widths))
        fits = self.group is not None and self.group <= 2 * g <= 2 * self.group
        return replace(self, group=g if fits else None)

    def lay(self, W: Float[Tensor, "o g"]) -> tuple[Float[Tensor, " o"], Float[Tensor, " o"]]:
        """Step and zero of every row of W, which is one group."""
        if self.symmetric:
            s = _eight_bits(W.abs().amax(1) / self.high)
            return s, torch.zeros_like(s)
        low, high = W.amin(1).clamp_max(0), W.amax(1).clamp_min(0)
        s = _eight_bits((high - low) / (self.high - self.low))
        return s, (self.low - low / s).round().clamp(self.low, self.high)

    def round(self, W: Tensor, s: Tensor, z: Tensor) -> Tensor:
        """Codes of W, as floating-point numbers; s and z must broadcast."""
        return (W / s + z).round().clamp(self.low, self.high)


@dataclass(frozen=True)
class Rounded:
    """A weight on a grid: codes, and for every row and group the step and the zero."""

    grid: Grid
    Q: Int8[Tensor, "o d"]
    s: Float[Tensor, "o k"]
    z: Int8[Tensor, "o k"]

    @property
    def W(self) -> Float[Tensor, "o d"]:
        """Ŵ = s (q − z), exact in single precision."""
        g = self.Q.shape[1] // self.s.shape[1]
        s, z = (x.float().repeat_interleave(g, 1) for x in (self.s, self.z))
        return (self.Q.float() - z) * s

    def stored_bits(self, step: int = 16) -> int:
        """Bits of all codes, and of steps (so many each) and zeros."""
        zero = 0 if self.grid.symmetric else self.grid.bits
        return self.grid.bits * self.Q.numel() + (step + zero) * self.s.numel()


def round_nearest(W: Float[Tensor, "o d"], grid: Grid) -> Rounded:
    """Every weight to the nearest value of its grid. Needs no data."""
    g = grid.width(W.shape[1])
    s, z = steps_of(W.double(), grid, g)
    Q = grid.round(W.double(), s.repeat_interleave(g, 1), z.repeat_interleave(g, 1))
    return as_rounded(grid, Q, s, z)


def round_compensated(
    W: Float[Tensor, "o d"],
    C: Float[Tensor, "d d"],
    grid: Grid,
    *,
    by_energy: bool = False,
    damping: float = DAMPING,
) -> Rounded:
    """Columns are rounded one by one; the rest make up for it in the metric of C = Σ x xᵀ / n.

    `by_energy` takes columns with a large C_jj first, when most are left to make up for them. Zeros stay zero, and the
    rest make up for that, too. Cost d³ + o d².
    """
    W = W.double()
    d = W.shape[1]
    g = grid.width(d)
    order = C.diagonal().argsort(descending=True, stable=True) if by_energy else torch.arange(d)
    s, z = steps_of(W, grid, g)
    Q, zero = torch.zeros_like(W), W == 0

    def settle(j: int, now: Tensor) -> Tensor:
        column, k = int(order[j]), int(order[j]) // g
        if not by_energy and j % g == 0:
            s[:, k], z[:, k] = grid.lay(now[:, j : j + g].masked_fill(zero[:, j : j + g], 0.0))
        q = torch.where(zero[:, column], z[:, k], grid.round(now[:, j], s[:, k], z[:, k]))
        Q[:, column] = q
        return (q - z[:, k]) * s[:, k]

    U = damped_root(C[order][:, order].to(W.device), damping)
    compensate(W[:, order], U, settle, block=whole_groups(g))
    return as_rounded(grid, Q, s, z)


def steps_of(W: Tensor, grid: Grid, g: int) -> tuple[Tensor, Tensor]:
    """Steps and zeros of all groups of W as it is."""
    s, z = grid.lay(W.reshape(-1, g))
    return s.view(len(W), -1), z.view(len(W), -1)


def as_rounded(grid: Grid, Q: Tensor, s: Tensor, z: Tensor) -> Rounded:
    """Codes, steps and zeros in the types they are stored in."""
    return Rounded(grid, Q.to(torch.int8), s.to(torch.bfloat16), z.to(torch.int8))


def _eight_bits(s: Tensor) -> Tensor:
    """s rounded up to eight significant bits, so that the largest weight never falls off the grid."""
    near = s.float().to(torch.bfloat16).double()
    mantissa, exponent = torch.frexp(near)
    up = torch.where(near < s, near + torch.ldexp(torch.full_like(mantissa, 2.0**-8), exponent), near)
    return up.clamp_min(TINY).to(s.dtype)

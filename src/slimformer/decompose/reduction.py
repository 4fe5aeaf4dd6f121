"""The one idea: a width is replaced by a smaller one, x ≈ E S x, and S, E follow from second moments.

For a width with a non-linearity before it, S may only select coordinates: S x = x_J. The best E given J is the least-
squares map from x_J to x. This file holds what every way of choosing J shares: the error left at every size, from one
factorisation, and the reduction at one size.

Error at every size. Put the coordinates in the order P of their worth and factor C[P, P] + λI = U D Uᵀ with U unit
lower triangular. The innovations ε = U⁻¹ x_P are what each coordinate adds to those before it, so keeping the first
k leaves x_P − U[:, :k] ε[:k] = U[:, k:] ε[k:], and through a reader W the error is

    e(k) = E ‖B[:, k:] ε[k:]‖² = Σ_{i,j ≥ k} K_ij (BᵀB)_ij,     B = W[:, P] U,   K = E ε εᵀ = U⁻¹ C' U⁻ᵀ,

with C' the moments of any data: those fitted on, or others, which makes the curve an honest held-out one. All k
together cost one O(d³) product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slimformer.errors import RankTooHigh
from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments

PANEL = 256  # columns of a symmetric product taken at once


@dataclass(frozen=True)
class Width:
    """A width x ∈ ℝᵈ and the map W that reads it: units of `unit` coordinates, `group` units to one key/value head.

    `fit` is what is fitted on, `held` other data. With a `bias` after W the mean of x costs nothing.
    """

    name: str
    W: Float[Tensor, "m d"]
    fit: Moments
    held: Moments
    unit: int = 1
    group: int = 1
    bias: bool = False

    @property
    def units(self) -> int:
        return self.W.shape[1] // self.unit


@dataclass(frozen=True)
class Selection:
    """x ≈ E x_J + c: keep the coordinates J, let the readers see least-squares combinations of them."""

    J: Int[Tensor, " k"]
    E: Float[Tensor, "d k"]
    c: Float[Tensor, " d"]


@dataclass(frozen=True)
class Curve:
    """Mean squared error left at every legal size, through the readers; nested: size k keeps the first k of `order`.
    Sizes are those the tokens can serve, and all units.

    `held` is measured on data that were not fitted; `floor` is the Eckart–Young limit there: no linear reduction of the
    same size can do better, so `held − floor` is what selecting (and not mixing) coordinates costs.
    `pivots` (|r_jj| of every unit in order) and `tail` (‖R[k:, k:]‖ at every size) are the raw material of STAT.
    """

    method: str
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    groups: tuple[int, ...]
    fit: tuple[float, ...]
    held: tuple[float, ...]
    floor: tuple[float, ...]
    pivots: tuple[float, ...] = ()
    tail: tuple[float, ...] = ()


def legal_sizes(units: int, group: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of units that leave every key/value head with equally many queries, and the key/value heads then kept.

    First the queries per group go down to one, then whole groups go: (9, 3) gives 0, 1, 2, 3, 6, 9. Sizes at which
    groups go whole, with more than one query, are those of `decompose.groups`.
    """
    heads = units // group
    sizes = [*range(heads + 1), *range(2 * heads, units + 1, heads)] if heads else [0]
    return tuple(sizes), tuple(min(size, heads) for size in sizes)


def may_join(chosen: Sequence[int], units: int, group: int) -> list[int]:
    """Units that may be kept next: those of the groups that have fewest so far."""
    rest = [u for u in range(units) if u not in chosen]
    count = [sum(u // group == g for u in chosen) for g in range(units // group)]
    fewest = min((count[u // group] for u in rest), default=0)
    return [u for u in rest if count[u // group] == fewest]


def may_leave(alive: Sequence[int], group: int) -> list[int]:
    """Units that may be dropped next: those of the groups that have most left."""
    count = {u // group: sum(v // group == u // group for v in alive) for u in alive}
    return [u for u in alive if count[u // group] == max(count.values())]


def coordinates(units: Sequence[int], unit: int) -> Int[Tensor, " k"]:
    """The coordinates of whole units, in the order of the units."""
    return (torch.tensor(list(units), dtype=torch.long)[:, None] * unit + torch.arange(unit)).flatten()


def errors_at_every_size(
    W: Float[Tensor, "m d"],
    P: Int[Tensor, " d"],
    C: Float[Tensor, "d d"],
    measured: Sequence[Float[Tensor, "d d"]],
    ridge: float,
) -> list[Float[Tensor, " d1"]]:
    """e(k) for k = 0 … d: coordinates kept in the order P, the rest predicted as fitted on C, errors seen through W.

    One curve for each of the second moments `measured`. Cost O(m d² + d³).
    """
    U = _factor(C, P, ridge)
    B = W[:, P] @ U
    return [_suffix_sums(B, U, C_eval[P][:, P]).clamp_min(0) for C_eval in measured]


def _factor(C: Float[Tensor, "d d"], P: Int[Tensor, " d"], ridge: float) -> Float[Tensor, "d d"]:
    """U, unit lower triangular, with U D Uᵀ = C[P, P] + λI."""
    U = torch.linalg.cholesky(damped(C, ridge)[P][:, P])
    return U.div_(U.diagonal().clone())


def _fit_and_held(
    width: Width, W: Float[Tensor, "m d"], P: Int[Tensor, " d"], ridge: float
) -> tuple[Float[Tensor, " d1"], Float[Tensor, " d1"]]:
    """As `errors_at_every_size` for both data of a width, one after the other: of matrices this wide few fit into
    memory."""
    C = width.fit.second(centred=width.bias)
    U = _factor(C, P, ridge)
    B = W[:, P] @ U
    C = C[P][:, P]
    fit = _suffix_sums(B, U, C).clamp_min(0)
    del C
    return fit, _suffix_sums(B, U, held_about_fitted_mean(width)[P][:, P]).clamp_min(0)


def _suffix_sums(B: Float[Tensor, "m d"], U: Float[Tensor, "d d"], C: Float[Tensor, "d d"]) -> Float[Tensor, " d1"]:
    """Σ_{i,j ≥ k} K_ij (BᵀB)_ij for k = 0 … d, K = U⁻¹ C U⁻ᵀ.

    Both are symmetric, so only what is on and above the diagonal is computed: of some columns at a time the first rows,
    for which substitution stops early.
    """
    half = torch.linalg.solve_triangular(U, C, upper=False, unitriangular=True).mT
    added = B.new_zeros(len(U))
    for a in range(0, len(U), PANEL):
        b = min(a + PANEL, len(U))
        K = torch.linalg.solve_triangular(U[:b, :b], half[:b, a:b], upper=False, unitriangular=True)
        M = K.mul_(B[:, :b].mT @ B[:, a:b])
        added[:a] += 2 * M[:a].sum(1)
        added[a:b] += M[a:].diagonal() + 2 * M[a:].triu(1).sum(1)
    return torch.cat([added.flip(0).cumsum(0).flip(0), added.new_zeros(1)])


def eckart_young(W: Float[Tensor, "m d"], C: Float[Tensor, "d d"]) -> Float[Tensor, " d1"]:
    """Smallest possible E ‖W x − A x‖² over maps A of rank k, for k = 0 … d: the discarded eigenvalues of W C Wᵀ."""
    λ = torch.linalg.eigvalsh(W @ C @ W.mT).clamp_min(0)  # ascending
    left = λ.new_zeros(W.shape[1] + 1)
    n = min(len(λ), W.shape[1])
    left[:n] = λ.cumsum(0).flip(0)[:n]
    return left


def curve(
    width: Width,
    method: str,
    order: Sequence[int],
    *,
    ridge: float,
    pivots: Sequence[float] = (),
    tail: Sequence[float] = (),
) -> Curve:
    """The error left at every legal size when units are kept in `order`."""
    whole = curve_along(width, method, order, legal_sizes(width.units, width.group), ridge=ridge)
    return replace(whole, pivots=tuple(pivots), tail=tuple(tail))


def curve_along(
    width: Width, method: str, order: Sequence[int], legal: tuple[Sequence[int], Sequence[int]], *, ridge: float
) -> Curve:
    """The error left at those of the `legal` sizes (units, key/value heads) that the tokens can serve."""
    W = width.W.double()
    fit, held = _fit_and_held(width, W, coordinates(order, width.unit), ridge)
    can = [(size, groups) for size, groups in zip(*legal, strict=True) if can_fit(width, size)]
    at = torch.tensor([size for size, _ in can], dtype=torch.long) * width.unit
    return Curve(
        method=method,
        order=tuple(int(u) for u in order),
        sizes=tuple(size for size, _ in can),
        groups=tuple(groups for _, groups in can),
        fit=tuple(fit[at].tolist()),
        held=tuple(held[at].tolist()),
        # rounding must not lift the limit above what was reached
        floor=tuple(torch.minimum(eckart_young(W, width.held.second(centred=width.bias))[at], held[at]).tolist()),
    )


def can_fit(width: Width, units: int) -> bool:
    """Are there tokens enough to refit the readers on so many units? With all of them nothing is refitted."""
    return units == width.units or units * width.unit <= width.fit.count


def held_about_fitted_mean(width: Width) -> Float[Tensor, "d d"]:
    """Second moments of the held data about the mean that was fitted: a shift of the mean is an error, too."""
    C = width.held.second(centred=width.bias)
    if not width.bias:
        return C
    shift = width.held.mean - width.fit.mean
    return C + torch.outer(shift, shift)


def select(width: Width, order: Sequence[int], size: int, *, ridge: float) -> Selection:
    """Keep the first `size` units of `order`, sorted; E solves the ridge regression of x on x_J over the fitted data.

    E_R = C_RJ (C_JJ + λI)⁻¹,  E_J = I,  c = μ − E μ_J. Cost O(k³ + k² d).
    """
    J = coordinates(sorted(order[:size]), width.unit)
    if len(J) > width.fit.count:
        raise RankTooHigh(
            f"{width.name}: asked to keep {len(J)} of {width.W.shape[1]} coordinates, but {width.fit.count} "
            "calibration tokens span no more directions than that; calibrate on more text"
        )
    C = width.fit.second(centred=width.bias)
    A = damped(C, ridge)
    E = C.new_zeros(len(C), len(J))
    E[J] = torch.eye(len(J), dtype=E.dtype, device=E.device)
    gone = torch.ones(len(C), dtype=torch.bool)
    gone[J] = False
    if len(J) and gone.any():
        E[gone] = torch.cholesky_solve(C[J][:, gone], torch.linalg.cholesky(A[J][:, J])).mT
    mean = width.fit.mean
    c = mean - E @ mean[J] if width.bias else torch.zeros_like(mean)
    return Selection(J, E, c)

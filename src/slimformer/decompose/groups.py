"""Whole key/value heads, with every query that reads them.

Under grouped queries a size is g key/value heads with q queries each, h = g q. The order of a method lowers q first and
then g, with one query left (`reduction.legal_sizes`): that is one nested chain. From every q > 1 on it another chain
leaves, on which key/value heads go whole with their q queries. Which go first is decided by what the refit loses: with

    V = W C_:J (C_JJ + λI)⁻¹

the reader fitted on the q queries of every head, backward elimination (`linalg.elimination`) drops blocks of q heads.
The error at every g is that of `reduction`, from one factorisation for every q.

Cost O(d² (d + m)) for every q = 2 … queries per key/value head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slimformer.decompose.reduction import Curve, Width, coordinates, curve_along
from slimformer.linalg.damped import damped
from slimformer.linalg.elimination import eliminate_blocks

RIDGE = 1e-6  # as in `decompose.elimination`: it only has to keep the inverse well-posed


def queries_each(units: int, group: int) -> range:
    """Numbers q of queries for which key/value heads may go whole; with one query they do so on the first chain."""
    return range(2, group + 1) if units > group else range(0)


def group_sizes(units: int, group: int, queries: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query heads and key/value heads kept, with so many queries each and at least one key/value head gone."""
    heads = range(1, units // group)
    return tuple(queries * g for g in heads), tuple(heads)


def group_curves(width: Width, first: Curve, *, ridge: float) -> dict[int, Curve]:
    """By queries q that every key/value head keeps: the error left when whole heads go. `first` is the first chain."""
    curves = {}
    for q in queries_each(width.units, width.group):
        order = _order(width, sorted(first.order[: q * (width.units // width.group)]), q, ridge=min(ridge, RIDGE))
        rest = [unit for unit in first.order if unit not in order]
        sizes = group_sizes(width.units, width.group, q)
        curves[q] = curve_along(width, first.method, [*order, *rest], sizes, ridge=ridge)
    return curves


def _order(width: Width, units: Sequence[int], queries: int, *, ridge: float) -> list[int]:
    """The units, `queries` of every key/value head, in blocks of whole heads; best first."""
    J = coordinates(units, width.unit)
    C = width.fit.second(centred=width.bias)
    A = damped(C, ridge)[J][:, J]
    V = torch.cholesky_solve(C[J] @ width.W.double().mT, torch.linalg.cholesky(A)).mT
    heads = eliminate_blocks(C[J][:, J], V, unit=queries * width.unit, allowed=lambda alive: alive, ridge=ridge)
    return [units[queries * head + i] for head in heads for i in range(queries)]

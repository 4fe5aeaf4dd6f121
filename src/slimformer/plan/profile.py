"""From curves to ladders: what every site may be cut to, what that costs, and how much it is expected to hurt."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from slimformer.decompose import Curve, Width, method
from slimformer.decompose.reduction import legal_sizes
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture, Family, Site
from slimformer.plan.cost import Size, site_cost
from slimformer.plan.ffn import curve_name, envelope, error_left, path_sizes

Price = Callable[[Site, Size, int], int]  # of a site at a size and a sequence length


@dataclass(frozen=True)
class Ladder:
    """The sizes a site may take, ascending, with their price (see `Budget`) and the expected harm at each."""

    site: Site
    sizes: tuple[Size, ...]
    cost: tuple[int, ...]
    harm: tuple[float, ...]
    curve: Curve


def profile_site(
    site: Site, W: Tensor, moments: Mapping[str, Moments], *, selector: str, ridge: float, absorb_mean: bool
) -> Curve:
    """The error left at every size of one site, measured on the select split. Cost: see the method."""
    return method(selector)(site_width(site, W, moments, absorb_mean=absorb_mean), ridge=ridge)


def site_width(site: Site, W: Tensor, moments: Mapping[str, Moments], *, absorb_mean: bool) -> Width:
    """A site as the decompositions see it."""
    fit = moments["fit"]
    bias = site.reader_bias and absorb_mean
    return Width(site.name, W.cpu(), fit, moments.get("select", fit), site.unit, site.group, bias)


def ladders(
    architecture: Architecture,
    curves: Mapping[str, Curve],
    *,
    seq_len: int,
    weights: Mapping[str, float],
    multiple_of: int,
    plain: bool,
    allow_empty: bool = False,
    price: Price | None = None,
    ffn: str = "neurons",
) -> list[Ladder]:
    """Legal sizes of every site. `weights` turn a site's error into harm to the whole; they come as data.

    Where `ffn` allows a linear path beside neurons, every price has the size of least harm.
    """
    out = []
    for site in architecture:
        legal = site_sizes(architecture, site, multiple_of=multiple_of, plain=plain, allow_empty=allow_empty, ffn=ffn)
        weight = weights.get(site.name, 1.0)
        rungs = [
            ((price or _macs)(site, size, seq_len), error_left(curves, site.name, size) * weight, size)
            for size in legal
            if curve_name(site.name, size.rank) in curves
        ]
        if any(size.rank for _, _, size in rungs):
            rungs = envelope(rungs, plain=plain)
        cost, harm, sizes = zip(*rungs, strict=True)
        out.append(Ladder(site, sizes, rising(cost), harm, curves[site.name]))
    return out


def rising(prices: Sequence[int]) -> tuple[int, ...]:
    """Prices that rise with the size. Exact ones do; measured ones may not, and a larger size is never cheaper."""
    return tuple(itertools.accumulate(prices, lambda before, now: max(now, before + 1)))


def _macs(site: Site, size: Size, seq_len: int) -> int:
    return site_cost(site, size, seq_len).macs


def site_sizes(
    architecture: Architecture,
    site: Site,
    *,
    multiple_of: int,
    plain: bool,
    allow_empty: bool = False,
    ffn: str = "neurons",
) -> tuple[Size, ...]:
    """Sizes a site may take, ascending; then those with a linear path beside neurons."""
    paths = path_sizes(site, ffn=ffn, multiple_of=multiple_of, plain=plain)
    sizes = zip(*legal_sizes(site.units, site.group), strict=True)
    alone = tuple(
        Size(units, groups)
        for units, groups in sizes
        if _legal(site, units, architecture, multiple_of, plain, allow_empty)
    )
    return (*(alone[-1:] if paths and ffn != "best" else alone), *paths)


def least_cost(
    architecture: Architecture,
    seq_len: int,
    *,
    multiple_of: int,
    plain: bool,
    allow_empty: bool = False,
    price: Price | None = None,
    ffn: str = "neurons",
) -> int:
    """The price of all blocks when every site has its smallest legal size: known before any data are read."""
    how: dict[str, Any] = {"multiple_of": multiple_of, "plain": plain, "allow_empty": allow_empty, "ffn": ffn}
    return sum(
        min((price or _macs)(site, size, seq_len) for size in site_sizes(architecture, site, **how))
        for site in architecture
    )


def _legal(site: Site, size: int, architecture: Architecture, multiple_of: int, plain: bool, allow_empty: bool) -> bool:
    if size == site.units:
        return True
    if site.fixed:
        return False
    if size == 0:  # stock attention cannot run without heads, nor GPT-2's Conv1D without inputs
        return allow_empty and not plain and site.kind == "ffn.hidden" and not architecture.family.fused
    if site.kind == "ffn.hidden":
        return size % min(multiple_of, site.units) == 0 if site.units > multiple_of else True
    return not plain or _plain_heads(architecture.family, architecture, size)


def _plain_heads(family: Family, architecture: Architecture, heads: int) -> bool:
    """Can the stock config of this model say "that many heads of the old width"?"""
    if not family.plain_heads:
        return False
    return architecture.model_type not in family.divides_hidden or architecture.hidden % heads == 0

"""The curve of a size. A site has one curve under its own name and, beside it, one for every other chain of sizes:

blocks.3.ffn.hidden+24      neurons with a linear path of rank 24 (`decompose.bypass`)
blocks.3.attn.heads*2       key/value heads that go whole, with two queries each (`decompose.groups`)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from slimformer.decompose import Curve
from slimformer.decompose.groups import queries_each
from slimformer.decompose.reduction import legal_sizes
from slimformer.models import Site
from slimformer.plan.cost import Size


def path_name(site: str, rank: int) -> str:
    """The name under which the curve of a site with a path of this rank is kept."""
    return f"{site}+{rank}" if rank else site


def group_name(site: str, queries: int) -> str:
    """The name under which the curve of a site is kept whose key/value heads go whole, with so many queries each."""
    return f"{site}*{queries}"


def group_names(site: Site) -> set[str]:
    """The curves of whole key/value heads a site has."""
    return {group_name(site.name, q) for q in queries_each(site.units, site.group)}


def without_groups(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """The curves on which key/value heads go whole only with one query each."""
    return {name: curve for name, curve in curves.items() if "*" not in name}


def too_few_tokens(sites: Iterable[Site], curves: Mapping[str, Curve]) -> bool:
    """Do curves end before they have all their sizes, because more could not be fitted?"""
    return any(len(curves[site.name].sizes) < len(legal_sizes(site.units, site.group)[0]) for site in sites)


def curve_of(curves: Mapping[str, Curve], site: str, size: Size) -> Curve | None:
    """The curve that has this size of a site; none where there is no such curve, or where tokens were too few."""
    for name in (group_name(site, size.units // max(1, size.groups)), path_name(site, size.rank)):
        curve = curves.get(name)
        if curve is not None:
            i = bisect_left(curve.sizes, size.units)
            if (curve.sizes[i : i + 1], curve.groups[i : i + 1]) == ((size.units,), (size.groups,)):
                return curve
    return None


def error_left(curves: Mapping[str, Curve], site: str, size: Size) -> float:
    """The held-out error of a site at a size."""
    curve = curve_of(curves, site, size)
    assert curve is not None, f"{site} has no curve for {size}"
    return curve.held[bisect_left(curve.sizes, size.units)]


def order_of(curves: Mapping[str, Curve], site: str, size: Size) -> tuple[int, ...]:
    """Units of a site in the order in which a size keeps them; all of its chains hold every unit."""
    return (curve_of(curves, site, size) or curves[site]).order

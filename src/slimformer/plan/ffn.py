"""Neurons with a linear path beside them: what a feed-forward part may be cut to, and the curves of that.

A size is k neurons and a path of rank r (`decompose.bypass`). Curves are kept one for each rank: that of neurons alone
under the name of the site, `blocks.3.ffn.hidden`, and one under `blocks.3.ffn.hidden+24` for a path of rank 24. At
equal price the size of least held-out error is offered, so a path is taken only where it wins.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from slimformer.calibrate.collect import BlockMoments
from slimformer.decompose import Curve
from slimformer.decompose.bypass import Joint, bypass_curves, linear_ranks, ranks, widths
from slimformer.errors import PlanDoesNotFit
from slimformer.models import Site
from slimformer.plan.cost import Size
from slimformer.plan.curves import path_name
from slimformer.plan.fitting import Fitting

Rung = tuple[int, float, Size]  # price, harm, size


def path_names(site: Site) -> set[str]:
    """The curves of paths a site has; none where there is a path already."""
    return set() if site.beside else {path_name(site.name, r) for r in linear_ranks(site.outer)}


def path_curves(joint: Joint, order: Sequence[int], *, ridge: float) -> dict[str, Curve]:
    """Curves of neurons kept in `order` with a path beside them, by name. Cost: see `decompose.bypass`."""
    curves = bypass_curves(joint, order, ridge=ridge)
    return {path_name(joint.name, rank): curve for rank, curve in curves.items()}


def joint_of(site: Site, W: Tensor, block: BlockMoments, how: Fitting) -> Joint:
    """A feed-forward part as `decompose.bypass` sees it."""
    if not block.joint:
        raise PlanDoesNotFit(
            f"the statistics hold no moments of {site.name} together with its input, which a linear path is fitted on; "
            "run `slimformer calibrate --paths` again"
        )
    root = block.metric.get(site.name) if how.metric == "fisher" else None
    fit, held = (block.joint[split] for split in ("fit", "select"))
    return Joint(site.name, W.cpu(), fit, held, (site.reader_bias or site.path_brings_bias) and how.absorb_mean, root)


def path_sizes(site: Site, *, ffn: str, multiple_of: int, plain: bool) -> tuple[Size, ...]:
    """Sizes with a path, for a recipe that says `ffn`; a stock config has no word for a path beside gated neurons."""
    if ffn == "neurons" or site.kind != "ffn.hidden" or site.beside or not site.units or site.expert:
        return ()
    if plain and site.gated:
        return ()
    D = site.outer
    sizes = [
        Size(k, k, r)
        for r in linear_ranks(D)
        for k in (widths(site.units) if r in ranks(D) and ffn != "linear" else (0,))
    ]
    return tuple(size for size in sizes if _legal(site, size, multiple_of))


def _legal(site: Site, size: Size, multiple_of: int) -> bool:
    step = min(multiple_of, site.units)
    if site.gated:  # from half the width on one square matrix is cheaper, and can say every rank
        return size.units % step == 0 and (2 * size.rank < site.outer or size.rank == site.outer)
    return size.units % step == 0 and 2 * size.rank % step == 0 and size.units + 2 * size.rank < site.units


def envelope(rungs: Sequence[Rung], *, plain: bool) -> list[Rung]:
    """Of equal price the size of least harm, ascending by price; without those a cheaper size beats.

    Plain sizes must be the same in every block, so there none is left out. The last, which cuts nothing, always stays.
    """
    cheapest: dict[int, Rung] = {}
    for rung in sorted(rungs, key=lambda each: (each[0], each[1], each[2].rank)):
        cheapest.setdefault(rung[0], rung)
    sizes = list(cheapest.values())
    if plain:
        return sizes
    out: list[Rung] = []
    for rung in sizes:
        if not out or rung[1] < out[-1][1] or rung is sizes[-1]:
            out.append(rung)
    return out

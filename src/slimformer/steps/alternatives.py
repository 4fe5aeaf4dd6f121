"""What a plan could choose from, as data: with it the page of a report makes plans at any budget, without Python.

For every site the sizes it may take, their price and the expected harm; for every block the ways its attention may be
cut; and, as a check on whoever computes with these, the plans of this program along the front. Sites of one shape have
the same sizes and prices, which are therefore written once; the harms are written in full, because a plan has to come
out the same to the last unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slimformer.decompose import Curve
from slimformer.decompose.groups import queries_each
from slimformer.errors import RankTooHigh
from slimformer.models import Site, describe
from slimformer.models.ranks import rank_sites
from slimformer.plan import Budget, Plan, Terms, allocate, choices, legal_sizes_of
from slimformer.plan.choice import NEAR, STEPS
from slimformer.plan.cost import Size, block_cost, full_size, site_cost
from slimformer.plan.curves import curve_of, error_left, group_name
from slimformer.plan.profile import Ladder, Prices, least_cost
from slimformer.plan.sensitivity import Probe, predicted_harm
from slimformer.plan.settings import CutSettings
from slimformer.run import Run
from slimformer.steps.make import read_probes, site_weights

GRID = 0.05  # between the plans along the front
DIGITS = 5  # of what is only looked at


def alternatives(run: Run, budget: Budget, settings: CutSettings) -> dict[str, Any]:
    """All choices, and the plans of every 5 % and of `budget`. Cost: some twenty allocations."""
    model, statistics, curves, format = run.dense, run.known, run.curves, run.format
    architecture, seq_len, probes = describe(model), run.seq_len, read_probes(statistics)
    weights, ranks = site_weights(statistics, curves, settings), rank_sites(model, architecture)
    terms = Terms(budget, settings, seq_len, weights, format, ranks)
    choice = choices(architecture, curves, terms)
    rungs = [*choice.fixed, *(ladder for part in choice.parts for way in part for ladder in way)]
    at = {ladder.site.name: i for i, ladder in enumerate(rungs)}
    legal = legal_sizes_of(settings, budget, architecture, format)
    least = least_cost(architecture, Prices(seq_len, price=budget.price), legal)
    dense, cost = budget.dense(architecture, seq_len), block_cost(architecture, seq_len)
    tables = _Tables(seq_len)
    every = {each.site.name: each.curve for each in rungs} | dict(curves)  # scores that cannot be cut have one, too
    sites = [_site(each, tables.number(each), every, probes) for each in rungs]
    plans = []
    for fraction in _grid(least / dense, budget.fraction):
        try:
            plans.append(allocate(architecture, curves, replace(terms, budget=replace(budget, fraction=fraction))))
        except RankTooHigh:  # to fit this one; nobody asked for it
            if fraction == budget.fraction:
                raise
    return {
        "by": budget.by, "allocation": choice.allocation, "metric": settings.metric, "near": list(NEAR), "steps": STEPS,
        "dense": {"price": dense, "macs": cost.macs, "params": cost.params},
        "least": math.ceil(1000 * least / dense) / 1000,
        "plan": _header(terms, statistics.provenance.fingerprint, [*architecture, *ranks], curves),
        "tables": tables.entries, "sites": sites,
        "fixed": [at[ladder.site.name] for ladder in choice.fixed],
        "parts": [[[at[ladder.site.name] for ladder in way] for way in part] for part in choice.parts],
        "points": [_point(plan, probes, curves, rungs) for plan in plans],
    }  # fmt: skip


def _header(terms: Terms, fingerprint: str, sites: Sequence[Site], curves: Mapping[str, Curve]) -> dict[str, Any]:
    """What all these plans have in common, and every site a plan may name with its method and its full size: with them
    the page writes plans as files."""
    settings = terms.settings
    edits = [
        {"site": site.name, "method": curves[site.name].method, "of": site.units, "groups": full_size(site).groups}
        for site in sites
        if site.name in curves
    ]
    return {
        "recipe": settings.name, "seq_len": terms.seq_len, "format": terms.format, "ridge": settings.ridge,
        "absorb_mean": settings.absorb_mean, "fingerprint": fingerprint, "metric": settings.metric, "edits": edits,
    }  # fmt: skip


class _Tables:
    """Sizes and prices, each list once."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.entries: list[dict[str, Any]] = []

    def number(self, ladder: Ladder) -> int:
        costs = [[site_cost(site, size, self.seq_len) for site in ladder.sites] for size in ladder.sizes]
        entry: dict[str, Any] = {
            "units": [size.units for size in ladder.sizes], "groups": [size.groups for size in ladder.sizes],
            "price": list(ladder.cost), "macs": [sum(cost.macs for cost in each) for each in costs],
            "params": [sum(cost.params for cost in each) for each in costs],
        }  # fmt: skip
        if any(size.rank for size in ladder.sizes):
            entry["ranks"] = [size.rank for size in ladder.sizes]
            entry["paired"] = not ladder.site.gated  # a rank is then two neurons
        if entry not in self.entries:
            self.entries.append(entry)
        return self.entries.index(entry)


def _site(ladder: Ladder, number: int, curves: Mapping[str, Curve], probes: Mapping[str, Probe]) -> dict[str, Any]:
    """Harm at every size, and what turns it into the share of error left and into predicted divergence."""
    site, sizes, curve, names = ladder.site, ladder.sizes, curves[ladder.site.name], [s.name for s in ladder.sites]
    whole = sum(curves[name].held[0] for name in names) or 1.0  # curves begin with nothing kept
    width = site.units * (
        2 if site.kind == "attn.qk" and site.attention.rotary else 1
    )  # a plane is two coordinates of a head
    relative = [sum(error_left(curves, name, size) for name in names) / whole for size in sizes]
    kl = [predicted_harm(probes, curves, ladder.spread(size)) for size in sizes]
    return {
        "site": site.name, "block": site.block, "kind": site.kind, "of": site.units, "width": width,
        "table": number, "harm": list(ladder.harm), "error": _scale(ladder.harm, relative),
        "kl": _scale(ladder.harm, kl) if site.name in probes else None,
        "floor": [_rounded(sum(_floor(curves, name, size) for name in names) / whole) for size in sizes],
        "order": list(curve.order) if site.kind == "attn.heads" else None,
        **({"orders": orders} if (orders := _orders(curves, site)) else {}),
        **({"others": names[1:]} if ladder.others else {}),
    }  # fmt: skip


def _floor(curves: Mapping[str, Curve], site: str, size: Size) -> float:
    curve = curve_of(curves, site, size)
    return 0.0 if size.rank or curve is None else curve.floor[curve.sizes.index(size.units)]


def _orders(curves: Mapping[str, Curve], site: Site) -> dict[int, list[int]]:
    """Heads in the order in which they are kept where key/value heads go whole, by queries each has."""
    queries = queries_each(site.units, site.group) if site.kind == "attn.heads" else ()
    return {q: list(curves[name].order) for q in queries if (name := group_name(site.name, q)) in curves}


def _scale(harm: Sequence[float], values: Sequence[float]) -> float | list[float]:
    """values / harm where this is one number, otherwise the values themselves."""
    top = max(range(len(harm)), key=lambda i: harm[i], default=0)
    ratio = values[top] / harm[top] if harm[top] > 0 else 0.0
    same = all(math.isclose(ratio * h, v, rel_tol=1e-9, abs_tol=1e-300) for h, v in zip(harm, values, strict=True))
    return ratio if same else [_rounded(value) for value in values]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _grid(lowest: float, chosen: float) -> list[float]:
    """Every 5 % that can be reached, and the budget itself; from large to small."""
    steps = {round(1 - GRID * i, 4) for i in range(int(1 / GRID))}
    return sorted({fraction for fraction in steps if fraction >= lowest} | {chosen}, reverse=True)


def _point(
    plan: Plan, probes: Mapping[str, Probe], curves: Mapping[str, Curve], rungs: Sequence[Ladder]
) -> dict[str, Any]:
    """A plan in short: units kept by site, "512+24" with a path of rank 24, "6/3" for six heads on three
    key/value heads where others went whole, null for ranks of attention that is not cut by rank."""
    sizes = plan.sizes
    return {
        "budget": plan.budget, "macs": plan.macs, "params": plan.params,
        "predicted_kl": predicted_harm(probes, curves, sizes) if probes else None,
        "keep": [_kept(each.site, sizes) for each in rungs],
    }  # fmt: skip


def _kept(site: Site, sizes: Mapping[str, Size]) -> int | str | None:
    """A plan does not name scores that cannot be cut; next to values that are, they count as whole."""
    if site.name in sizes:
        size = sizes[site.name]
        if site.kind == "attn.heads" and size.groups < min(size.units, site.units // max(1, site.group)):
            return f"{size.units}/{size.groups}"
        return f"{size.units}+{size.rank}" if size.rank else size.units
    return site.units if site.kind == "attn.qk" and site.rank_name("vo") in sizes else None

"""The allocation written in JavaScript for the page of a report is the one written in Python."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import pytest
from test_choice import problem

from chromium import browser
from slimformer.plan.choice import NEAR, STEPS
from slimformer.plan.cost import Size
from slimformer.plan.planning import Choices, spend


@pytest.fixture(scope="module")
def page():
    with browser() as found:
        found.evaluate((resources.files("slimformer.report") / "web" / "plan.js").read_text())
        yield found


def test_the_page_allocates_as_python_on_any_ladders(page):
    """Also where many choices are equally good: harms are small whole numbers in half of the cases."""
    for seed in range(24):
        fixed, parts = problem(seed, blocks=4)
        if seed % 2:
            fixed, parts = _rounded(fixed), [[_rounded(way) for way in part] for part in parts]
        rungs = [*fixed, *(rung for part in parts for way in part for rung in way)]
        at = {rung.site.name: i for i, rung in enumerate(rungs)}
        most = sum(rung.cost[-1] for rung in [*fixed, *(rung for part in parts for rung in part[0])])
        front = {
            "allocation": "greedy", "near": NEAR, "steps": STEPS, "dense": {"price": most},
            "tables": [
                {"units": [s.units for s in rung.sizes], "groups": [s.groups for s in rung.sizes], "price": rung.cost}
                for rung in rungs
            ],
            "sites": [
                {"site": rung.site.name, "block": rung.site.block, "kind": rung.site.kind, "of": rung.site.units,
                 "table": i, "harm": rung.harm}
                for i, rung in enumerate(rungs)
            ],
            "fixed": [at[rung.site.name] for rung in fixed],
            "parts": [[[at[rung.site.name] for rung in way] for way in part] for part in parts],
        }  # fmt: skip
        for fraction in (0.45, 0.6, 0.8, 1.0):
            found = page.evaluate(f"(f => planAt(f, laddersOf(f), {fraction}))({json.dumps(front)})")
            sizes = spend(Choices("greedy", fixed, parts), int(fraction * most))
            whole = {site for site in at if site.endswith(("qk", "vo")) and not _cut(site, sizes, rungs)}
            assert found == [None if name in whole else sizes[name].units for name in at], (seed, fraction)
        alone = {**front, "fixed": front["fixed"], "parts": []}
        found = page.evaluate(f"(f => planAt(f, laddersOf(f), 0.4))({json.dumps(alone)})")
        if sum(rung.cost[0] for rung in fixed) <= int(0.4 * most):
            sizes = spend(Choices("greedy", fixed, []), int(0.4 * most))
            assert found[: len(fixed)] == [sizes[rung.site.name].units for rung in fixed]


def test_the_page_tells_sizes_with_a_path_from_those_without(page):
    """Two sizes may keep the same units; what tells them apart is the rank of the path beside them."""
    fixed, _ = problem(3, blocks=4)
    rungs = [
        replace(rung, sizes=(*(Size(i // 2, i // 2, 4 * (i % 2)) for i in range(len(rung.sizes) - 1)), rung.sizes[-1]))
        for rung in fixed
    ]
    most = sum(rung.cost[-1] for rung in rungs)
    front = {
        "allocation": "greedy", "near": NEAR, "steps": STEPS, "dense": {"price": most},
        "tables": [
            {"units": [s.units for s in rung.sizes], "ranks": [s.rank for s in rung.sizes], "price": rung.cost}
            for rung in rungs
        ],
        "sites": [
            {"site": rung.site.name, "block": rung.site.block, "kind": rung.site.kind, "of": rung.site.units,
             "table": i, "harm": rung.harm}
            for i, rung in enumerate(rungs)
        ],
        "fixed": list(range(len(rungs))), "parts": [],
    }  # fmt: skip
    paths = 0
    for fraction in (0.45, 0.6, 0.75, 0.9):
        found = page.evaluate(f"(f => planAt(f, laddersOf(f), {fraction}))({json.dumps(front)})")
        bought = spend(Choices("greedy", rungs, []), int(fraction * most))
        sizes = [bought[rung.site.name] for rung in rungs]
        assert found == [f"{size.units}+{size.rank}" if size.rank else size.units for size in sizes]
        rows = page.evaluate(
            f"(f => laddersOf(f).map((l, i) => rungOf(l, {json.dumps(found)}[i])))({json.dumps(front)})"
        )
        assert rows == [rung.sizes.index(size) for rung, size in zip(rungs, sizes, strict=True)]
        paths += sum(size.rank > 0 for size in sizes)
    assert paths


def _rounded(rungs):
    return [replace(rung, harm=tuple(round(3 * h) / 1.0 for h in rung.harm)) for rung in rungs]


def _cut(site: str, sizes, rungs) -> bool:
    block = site.rsplit(".", 1)[0]
    ranks = [rung for rung in rungs if rung.site.name in (f"{block}.qk", f"{block}.vo")]
    return any(sizes[rung.site.name].units < rung.site.units for rung in ranks)

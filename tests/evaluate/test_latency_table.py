"""Latency budgets: measured once per kind of model, spent by the same allocation."""

import pytest
import torch

import slimformer
from families import MODEL_TYPES, tiny
from slimformer.evaluate import latency_table as timings
from slimformer.models import describe
from slimformer.plan.budget import Budget, LatencyTable, shape
from slimformer.plan.cost import full_size
from slimformer.plan.profile import head_sizes


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_site_has_a_price_at_full_size_and_the_model_is_left_alone(model_type):
    model = tiny(model_type)
    before = describe(model)
    table = timings.latency_table(model, seq_len=16)
    assert describe(model) == before
    assert {shape(site) for site in before} == table.points.keys()
    budget = Budget(0.5, "latency", table)
    assert all(budget.price(site, full_size(site), 16) > 0 for site in before)


def test_a_table_is_measured_once_and_never_taken_for_another_kind_of_model(monkeypatch):
    measured = []
    real = timings._measure
    monkeypatch.setattr(timings, "_measure", lambda *args: measured.append(1) or real(*args))
    first = timings.latency_table(tiny("bert"), seq_len=16)
    assert timings.latency_table(tiny("bert"), seq_len=16) == first
    assert len(measured) == 1
    timings.latency_table(tiny("distilbert"), seq_len=16)  # the same shapes
    assert len(measured) == 2


def test_a_latency_budget_is_kept_by_the_table(monkeypatch):
    """With prices that no clock has a say in: those of a tiny model are mostly noise."""
    model = tiny("llama")
    architecture = describe(model)
    points = {shape(site): tuple((u, g, 1000 + 100 * u) for u, g in head_sizes(site)) for site in architecture}
    table = LatencyTable("here", 16, points)
    monkeypatch.setattr("slimformer.steps.make.latency_table", lambda *_, **__: table)
    ids = torch.randint(0, 60, (40, 16), generator=torch.Generator().manual_seed(0))
    plan = slimformer.compress(model, ids, latency=0.9, timing=False).plan
    budget = Budget(0.9, "latency", table)
    spent = sum(budget.price(site, plan.sizes[site.name], 16) for site in architecture)
    assert plan.by == "latency"
    assert 0.8 * budget.dense(architecture, 16) < spent <= 0.9 * budget.dense(architecture, 16)


def test_the_smallest_certified_model_is_the_last_that_passed():
    ids = torch.randint(0, 60, (400, 16), generator=torch.Generator().manual_seed(0))
    result = slimformer.compress(tiny("llama"), ids, max_kl=0.05, timing=False)
    points = result.report.certificate["points"]
    assert result.plan.budget == [point["budget"] for point in points if point["passed"]][-1]
    assert all(point["passed"] for point in points[:-1])
    assert "with probability" in result.report.certificate["statement"]

"""The recipe `fast`: a budget spread by the metric alone, in which errors of all sites are in nats already."""

from __future__ import annotations

import json

import pytest
import torch

import slimformer
from families import LENGTH, VOCABULARY, tiny
from slimformer.calibrate.store import open_statistics
from slimformer.recipe import cut_settings
from slimformer.steps.make import site_weights
from terminal import done

pytestmark = pytest.mark.usefixtures("trusting")


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_it_makes_no_probes_and_keeps_the_budget(model_type, tmp_path):
    ids = torch.randint(5, VOCABULARY, (60, LENGTH), generator=torch.Generator().manual_seed(0))
    result = slimformer.compress(tiny(model_type), ids, macs=0.6, recipe="fast", timing=False)
    assert 0.5 < result.report.macs_kept <= 0.6
    assert result.plan.predicted_kl is None and not result.report.correction


def test_errors_in_the_metric_need_no_weights(stats):
    fast, statistics = cut_settings("fast"), open_statistics(stats)
    assert statistics.metric and site_weights(statistics, {}, fast) == {}
    squares = fast.model_copy(update={"metric": "squares"})
    assert site_weights(statistics, {}, squares) == statistics.weights()


def test_the_same_statistics_serve_it(stats, tmp_path):
    plans = {}
    for recipe in ("fast", "balanced"):
        done("plan", stats, "--macs", 0.6, "--recipe", recipe, "--out", tmp_path / f"{recipe}.json", "-q")
        plans[recipe] = json.loads((tmp_path / f"{recipe}.json").read_text())
    assert plans["fast"]["recipe"] == "fast" and plans["fast"]["macs"] <= 0.6
    assert all(plan["predicted_kl"] > 0 for plan in plans.values())  # probes that are there say what a plan will do

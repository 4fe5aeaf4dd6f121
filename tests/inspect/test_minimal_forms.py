"""What `inspect` says of attention whose heads have no matrix for each role, and of blocks without an MLP."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from families import tiny, tiny_batches
from slimformer.inspect.portrait import data_portrait, weights_portrait
from slimformer.inspect.summary import inspection
from slimformer.models import describe
from slimformer.models.load import Loaded
from slimformer.report.inspection import show_inspection
from slimformer.report.portrait import show_portrait


def two_splits(model):
    return {"fit": tiny_batches(model, 2), "report": tiny_batches(model, 1, seed=1)}


def inspected(model):
    """All that is found, and all that is printed."""
    architecture = describe(model)
    found = inspection(Loaded("tiny", model, None), architecture, 17)
    found["weights"] = weights_portrait(model, architecture, values=True)
    rows = {17: tiny_batches(model, 2, rows=1)}
    seen = data_portrait(model, architecture, two_splits(model), rows)
    found["data"] = [{"name": "random", "tokens": 1, **seen}]
    console = Console(file=io.StringIO(), width=200)
    show_inspection(found, console)
    show_portrait(found, console)
    return found, console.file.getvalue()


@pytest.mark.parametrize(("qk", "vo", "neurons"), [
    ("full", "full", 0), ("collapsed", "none", 48), ("symmetric", "none", 0), ("symmetric-skew", "collapsed", 0),
])  # fmt: skip
def test_every_form_can_be_inspected(qk, vo, neurons):
    model = tiny("minimal", qk=qk, vo=vo, intermediate_size=neurons)
    found, printed = inspected(model)
    assert found["parameters"]["exact"] == sum(p.numel() for p in model.parameters())
    reasons = [site["fixed"] for site in found["sites"] if "fixed" in site]
    assert len(reasons) == (0 if qk == vo == "full" else 3)
    assert all(f"qk={qk}" in reason for reason in reasons)
    assert "simpler W_qk on random" in printed


def test_symmetric_heads_are_found_to_be_symmetric_and_others_are_not():
    errors = {}
    for qk in ("symmetric", "full"):
        found, _ = inspected(tiny("minimal", qk=qk))
        forms = [block["score_forms"] for block in found["data"][0]["activations"]]
        errors[qk] = max(error for form in forms for error in form["symmetric"])
        assert all(len(form["null"]["symmetric"]) == 4 and form["distance"] is None for form in forms)
    assert errors["symmetric"] < 1e-3 < 0.2 < errors["full"]


def test_rotary_scores_are_said_to_be_those_at_distance_0():
    found, printed = inspected_rotary()
    assert all(block["score_forms"]["distance"] == 0 for block in found)
    assert "at distance 0" in printed


def inspected_rotary():
    from slimformer.report.portrait import forms_table

    model = tiny("llama")
    seen = data_portrait(model, describe(model), two_splits(model), {})
    console = Console(file=io.StringIO(), width=200)
    console.print(forms_table({"name": "random", **seen}))
    return seen["activations"], console.file.getvalue()

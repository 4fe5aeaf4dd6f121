import pytest
import torch

from calibrated import outputs, recipe, stock
from families import HEADS, MODEL_TYPES
from slimformer.calibrate.collect import starting_at, states_before_blocks
from slimformer.decompose import Curve
from slimformer.models import describe
from slimformer.models.outputs import harm
from slimformer.models.ranks import rank_sites
from slimformer.plan.sensitivity import Probe, sensitivities
from slimformer.rewrite.probe import knee, probe


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_model_started_in_the_middle_ends_where_it_always_does(kind):
    known = stock(kind)
    batch = known.data["select"][0]
    with torch.no_grad():
        states = states_before_blocks(known.model, known.architecture, batch)
    expected = outputs(known.model, batch)
    for i, state in enumerate(states):
        with starting_at(known.model, known.architecture, i, state):
            assert torch.allclose(outputs(known.model, batch), expected, rtol=1e-12, atol=1e-12), i
    assert torch.equal(outputs(known.model, batch), expected)


@pytest.mark.parametrize(("kind", "head"), HEADS)
def test_probes_find_harm_and_leave_the_model_as_it_was(kind, head):
    known, how = stock(kind, head), recipe(ridge=1e-6, metric="squares")
    sites = {**known.architecture.by_name, **{site.name: site for site in rank_sites(known.model, known.architecture)}}
    before = {name: tensor.clone() for name, tensor in known.model.state_dict().items()}
    found = probe(known.model, lambda i: known.blocks[i], known.curves(how), known.data["select"], how)
    assert set(found) == set(sites)
    assert all(each.harm > 0 and each.error > 0 and each.keep < sites[name].units for name, each in found.items())
    after = known.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert describe(known.model) == known.architecture


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_probe_measures_what_cutting_that_site_alone_does(kind):
    """The same harm as applying a plan that cuts one site and keeps all others."""
    known, how = stock(kind), recipe(ridge=1e-6)
    curves = known.curves(how)
    found = probe(known.model, lambda i: known.blocks[i], curves, known.data["select"], how)
    site = known.architecture.sites[-1]
    full = known.plan(1.0, how)
    edits = tuple(
        type(edit)(
            edit.site, edit.method, knee(curves[edit.site], most=10**9), edit.of, knee(curves[edit.site], most=10**9)
        )
        if edit.site == site.name
        else edit
        for edit in full.edits
    )
    small = known.apply(type(full)(**{**vars(full), "edits": edits}), how)
    batch = known.data["select"][0]
    with torch.no_grad():
        expected, _ = harm(known.model(**batch.inputs), small(**batch.inputs), batch.mask)
    assert found[site.name].harm == pytest.approx(expected, rel=1e-4)


def test_tempering_goes_from_equal_relative_errors_to_what_was_measured():
    probes = {"a": Probe("a", 1, 2.0, 8.0), "b": Probe("b", 1, 1.0, 0.5)}
    assert sensitivities(probes, {}, temper=1.0, nats=False) == pytest.approx({"a": 4.0, "b": 0.5})
    assert sensitivities(probes, {}, temper=0.0, nats=False) == pytest.approx({"a": 1.0, "b": 2.0})  # h̄ = 2, over e
    assert sensitivities(probes, {}, temper=0.0, nats=True) == pytest.approx({"a": 2**0.5, "b": 2**0.5})  # mean of h/e


def test_weights_turn_the_errors_of_the_curves_in_use_into_harm_whatever_their_unit():
    probe = {"a": Probe("a", 1, 2.0, 8.0)}
    curve = Curve("elimination", (0, 1), (0, 1, 2), (0, 1, 2), (9.0, 3.0, 0.0), (9.0, 4.0, 0.0), (0.0, 0.0, 0.0))
    assert sensitivities(probe, {"a": curve}, temper=1.0, nats=False) == pytest.approx({"a": 2.0})


def test_a_site_without_harm_counts_as_the_least_harmful():
    probes = {"a": Probe("a", 1, 2.0, 8.0), "b": Probe("b", 1, 0.0, 0.0)}
    assert sensitivities(probes, {}, temper=1.0, nats=False)["b"] == pytest.approx(4.0)
    assert sensitivities({}, {}, temper=1.0, nats=False) == {}

import pytest
import torch

from calibrated import recipe, stock
from families import HEADS, MODEL_TYPES
from slimformer.decompose import Curve
from slimformer.models import describe
from slimformer.models.outputs import harm
from slimformer.models.ranks import rank_sites
from slimformer.plan.sensitivity import Probe, sensitivities
from slimformer.rewrite.apply import Cut
from slimformer.rewrite.probe import knee, probe


@pytest.mark.parametrize(("kind", "head"), HEADS)
def test_probes_find_harm_and_leave_the_model_as_it_was(kind, head):
    known, how = stock(kind, head), recipe(ridge=1e-6, metric="squares")
    sites = {**known.architecture.by_name, **{site.name: site for site in rank_sites(known.model, known.architecture)}}
    before = {name: tensor.clone() for name, tensor in known.model.state_dict().items()}
    found = probe(known.model, Cut(how, known.curves(how), lambda i: known.blocks[i]), known.data["select"])
    assert set(found) == set(sites)
    assert all(each.harm > 0 and each.error > 0 and each.keep < sites[name].units for name, each in found.items())
    after = known.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert describe(known.model) == known.architecture


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_probe_measures_what_cutting_all_sites_of_that_kind_does(kind):
    """The same harm as applying a plan that cuts them and keeps all others, shared out by error."""
    known, how = stock(kind), recipe(ridge=1e-6)
    curves = known.curves(how)
    probes = probe(known.model, Cut(how, curves, lambda i: known.blocks[i]), known.data["select"])
    chosen = [site.name for site in known.architecture if site.kind == "ffn.hidden"]
    full = known.plan(1.0, how)
    sizes = {name: knee(curves[name], most=10**9) for name in chosen}
    edits = tuple(
        type(edit)(edit.site, edit.method, sizes[edit.site], edit.of, sizes[edit.site]) if edit.site in sizes else edit
        for edit in full.edits
    )
    small = known.apply(type(full)(**{**vars(full), "edits": edits}), how)
    batch = known.data["select"][0]
    with torch.no_grad():
        expected, _ = harm(known.model(**batch.inputs), small(**batch.inputs), batch.mask)
    assert sum(probes[name].harm for name in chosen) == pytest.approx(expected, rel=1e-3)
    rates = [probes[name].harm / probes[name].error for name in chosen]
    assert rates == pytest.approx([rates[0]] * len(rates))


def test_a_weight_is_harm_by_error():
    probes = {"a": Probe("a", 1, 2.0, 8.0), "b": Probe("b", 1, 1.0, 0.5)}
    assert sensitivities(probes, {}) == pytest.approx({"a": 4.0, "b": 0.5})


def test_weights_turn_the_errors_of_the_curves_in_use_into_harm_whatever_their_unit():
    probe = {"a": Probe("a", 1, 2.0, 8.0)}
    curve = Curve("elimination", (0, 1), (0, 1, 2), (0, 1, 2), (9.0, 3.0, 0.0), (9.0, 4.0, 0.0), (0.0, 0.0, 0.0))
    assert sensitivities(probe, {"a": curve}) == pytest.approx({"a": 2.0})


def test_a_site_without_harm_counts_as_the_least_harmful():
    probes = {"a": Probe("a", 1, 2.0, 8.0), "b": Probe("b", 1, 0.0, 0.0)}
    assert sensitivities(probes, {})["b"] == pytest.approx(4.0)
    assert sensitivities({}, {}) == {}

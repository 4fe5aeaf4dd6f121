"""What every method must do to every family: exact where exactness is possible, and never other than its curve says."""

import dataclasses
import functools

import pytest
import torch

from calibrated import Calibrated, calibrated, outputs, recipe, stock
from families import MODEL_TYPES, RUN_AGAIN, tiny
from slimformer.decompose import METHODS, select
from slimformer.models import FAMILIES, describe
from slimformer.models.architecture import own_rows, weight_of
from slimformer.plan.profile import site_width
from slimformer.rewrite.apply import cut_site

every_family = pytest.mark.parametrize("model_type", MODEL_TYPES)
every_method = pytest.mark.parametrize("method", METHODS)
every_format = pytest.mark.parametrize("format", ["ragged", "plain"])
with_and_without_mean = pytest.mark.parametrize("absorb", [True, False], ids=["mean absorbed", "mean kept"])

GATED, RELU = ("llama", "mistral", "qwen2", "qwen3"), ("opt",)


def exact(method: str, **changes):
    """A recipe with hardly any ridge; interpolative goes with STAT's thresholds, elimination with hulls."""
    return recipe("stat" if method == "interpolative" else "balanced", absorb_mean=True, **changes)


def keeping(found, how, sizes, format="ragged"):
    """The model cut to these sizes, by site: (units, groups)."""
    plan = found.plan(1.0, how, format=format)
    edits = tuple(
        dataclasses.replace(edit, keep=sizes[edit.site][0], groups=sizes[edit.site][1]) if edit.site in sizes else edit
        for edit in plan.edits
    )
    return found.apply(dataclasses.replace(plan, edits=edits), how)


def distance(found, small) -> float:
    """The largest difference of outputs, on data that were fitted and on data that were not.

    With ReLU a neuron may be dead on the ones and alive on the others, so there only fitted data count.
    """
    splits = ("fit",) if found.model.config.model_type in RELU else ("fit", "select")
    batches = [batch for split in splits for batch in found.data[split][:1]]
    return max(float((outputs(small, batch) - outputs(found.model, batch)).abs().max()) for batch in batches)


@every_family
@every_method
@every_format
def test_the_full_budget_changes_nothing(method, model_type, format):
    found = stock(model_type)
    assert distance(found, found.compress(1.0, exact(method), format=format)) <= 1e-10


@every_family
@every_method
def test_full_rank_changes_nothing(method, model_type):
    """Also when every site goes through selection and surgery."""
    found, how = stock(model_type), exact(method)
    small = found.compress(1.0, how)
    for site in found.architecture:
        order = found.curves(how)[site.name].order
        W = weight_of(found.model.get_submodule(site.reader))
        width = site_width(site, W, found.blocks[site.block].sites[site.name], absorb_mean=True)
        edit = next(edit for edit in found.plan(1.0, how).edits if edit.site == site.name)
        cut_site(small, site, edit, order, select(width, order, site.units, ridge=how.ridge))
    assert distance(found, small) <= 1e-10


@torch.no_grad()
def copy_neurons(model, scale: float) -> None:
    """The second half of the neurons of every block become copies of the first, `scale` times as active."""
    for site in describe(model):
        if site.kind != "ffn.hidden":
            continue
        half = site.units // 2
        for writer in site.writers:
            layer, rows = model.get_submodule(writer.module), own_rows(site, writer).flatten()
            factor = scale if writer is site.writers[-1] else 1.0  # of a gated pair the linear one
            for tensor in (weight_of(layer), layer.bias):
                if tensor is not None:
                    tensor[rows[half:]] = factor * tensor[rows[:half]]


@functools.cache
def with_copied_neurons(model_type: str, scale: float) -> Calibrated:
    model = tiny(model_type).double()
    copy_neurons(model, scale)
    return calibrated(model)


def scales(model_type: str) -> tuple[float, ...]:
    """Factors by which a neuron of the family can be a copy: ReLU is homogeneous, a gate's partner is linear."""
    return (1.0, -2.5) if model_type in GATED else (1.0, 2.5) if model_type in RELU else (1.0,)


@pytest.mark.parametrize(("model_type", "scale"), [(t, s) for t in MODEL_TYPES for s in scales(t)])
@every_method
@with_and_without_mean
def test_copied_neurons_are_removed_exactly(method, model_type, scale, absorb):
    found, how = with_copied_neurons(model_type, scale), exact(method).model_copy(update={"absorb_mean": absorb})
    half = {site.name: (site.units // 2, site.units // 2) for site in found.architecture if site.kind == "ffn.hidden"}
    small = keeping(found, how, half)
    assert all(describe(small)[name].units == size for name, (size, _) in half.items())
    assert distance(found, small) <= 1e-8


@torch.no_grad()
def copy_head(model, to: int, of: int, scale: float = 1.0) -> None:
    """In every block query head `to` becomes `of`, with its keys and values, the latter `scale` times as large."""
    for site in describe(model):
        if site.kind != "attn.heads":
            continue
        for part, writer in enumerate(site.writers):
            layer, rows = model.get_submodule(writer.module), own_rows(site, writer)
            there, here = (rows[head // writer.shared] for head in (to, of))
            factor = scale if part == 2 and not torch.equal(there, here) else 1.0
            for tensor in (weight_of(layer), layer.bias):
                if tensor is not None:
                    tensor[there] = factor * tensor[here]


@functools.cache
def with_copied_heads(model_type: str, *copies: tuple[int, int], scale: float = 1.0) -> Calibrated:
    model = tiny(model_type).double()
    for to, of in copies:
        copy_head(model, to, of, scale)
    return calibrated(model)


@every_family
@every_method
@pytest.mark.parametrize("scale", [1.0, -2.0])
def test_copied_heads_are_removed_exactly(method, model_type, scale):
    """Heads 2 and 3 are heads 0 and 1 again: two are enough. Under grouped queries these are two groups, and one query
    of each must stay: not any, but one of each kind."""
    found, how = with_copied_heads(model_type, (2, 0), (3, 1), scale=scale), exact(method)
    two = {site.name: (2, 2) for site in found.architecture if site.kind == "attn.heads" and not site.stays}
    assert distance(found, keeping(found, how, two)) <= 1e-8


@pytest.mark.parametrize("model_type", GATED)
@every_method
def test_copied_queries_of_a_group_are_removed_exactly(method, model_type):
    found, how = with_copied_heads(model_type, (1, 0), (3, 2)), exact(method)
    two = {site.name: (2, 2) for site in found.architecture if site.kind == "attn.heads" and not site.stays}
    small = keeping(found, how, two)
    assert all(site.group == 1 for site in describe(small))
    assert distance(found, small) <= 1e-8


@torch.no_grad()
def silence(model, site, units) -> None:
    """Nothing that these units write ever differs from zero: values of heads, all writers of neurons."""
    for writer in site.writers[-1:] if site.kind == "attn.heads" else site.writers:
        layer, rows = model.get_submodule(writer.module), own_rows(site, writer)
        for unit in units:
            for tensor in (weight_of(layer), layer.bias):
                if tensor is not None:
                    tensor[rows[unit // writer.shared]] = 0


DEAD = {"ffn.hidden": {1, 2, 5, 7, 11, 20, 30, 47}, "attn.heads": {2, 3}}


@functools.cache
def with_dead_units(model_type: str) -> Calibrated:
    model = tiny(model_type).double()
    for site in describe(model):
        silence(model, site, sorted(DEAD[site.kind]))
    return calibrated(model)


@every_family
@every_method
def test_dead_units_go_first_and_are_not_missed(method, model_type):
    found, how = with_dead_units(model_type), exact(method)
    sizes = {}
    for site in (site for site in found.architecture if not site.stays):
        order = found.curves(how)[site.name].order
        silent = set(range(site.units)) if site.group > 1 else _silent(found, site)
        assert DEAD[site.kind] <= silent
        if site.group == 1:
            keep = site.units - len(silent)
            sizes[site.name] = (keep, keep)
            assert set(order[keep:]) == silent
        else:  # heads 2 and 3 are a group: they come last whenever it is their turn
            assert {order[1], order[3]} == DEAD[site.kind]
    assert distance(found, keeping(found, how, sizes)) <= 1e-8


def _silent(found, site) -> set[int]:
    """Units that were never active (with ReLU there are some by nature)."""
    energy = found.blocks[site.block].sites[site.name]["fit"].gram.diagonal().reshape(site.units, site.unit).sum(1)
    return set(torch.nonzero(energy == 0).flatten().tolist())


@torch.no_grad()
def read_outputs(model, site, batches):
    """What the reader of a site puts out at real positions."""
    out = []

    def hook(_module, args, output):
        rows = output.flatten(0, -2)
        out.append(rows if batch.mask is None else rows[batch.mask.flatten()])

    handle = model.get_submodule(site.reader).register_forward_hook(hook)
    for batch in batches:
        model(**batch.inputs)
    handle.remove()
    return torch.cat(out)


@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if name not in RUN_AGAIN])
@every_method
@with_and_without_mean
@pytest.mark.parametrize("ridge", [1e-12, 1e-2])
def test_the_error_in_the_model_is_the_one_on_the_curve(method, model_type, absorb, ridge):
    """Cut one site of the first block: its inputs are the same in both models, so the difference of what its reader
    puts out must be the error the curve promised, on fitted and on held data alike."""
    found, how = stock(model_type), exact(method).model_copy(update={"absorb_mean": absorb, "ridge": ridge})
    for site in (site for site in found.architecture.blocks[0].sites if not site.stays):
        curve = found.curves(how)[site.name]
        size = 2 if site.kind == "attn.heads" else 16
        i = curve.sizes.index(size)
        small = keeping(found, how, {site.name: (size, curve.groups[i])})
        for split, promised in (("fit", curve.fit[i]), ("select", curve.held[i])):
            off = read_outputs(small, site, found.data[split]) - read_outputs(found.model, site, found.data[split])
            assert float(off.square().sum(1).mean()) == pytest.approx(promised, rel=1e-6)


@every_family
@every_method
def test_error_never_grows_with_size_and_selection_never_beats_the_floor(method, model_type):
    found, how = stock(model_type), exact(method)
    for curve in found.curves(how).values():
        slack = 1e-9 * curve.fit[0]
        assert all(a >= b - slack for a, b in zip(curve.fit, curve.fit[1:], strict=False))
        assert all(held >= floor - slack for held, floor in zip(curve.held, curve.floor, strict=True))
        if curve.sizes[-1] == len(curve.order):  # on every chain but those of whole key/value heads
            assert curve.fit[-1] == curve.held[-1] == 0


@every_family
@every_method
@every_format
@pytest.mark.parametrize("budget", [0.9, 0.72])
def test_every_budget_gives_a_model_that_runs(method, model_type, format, budget):
    found = stock(model_type)
    plan = found.plan(budget, exact(method), format=format)
    small = found.apply(plan, exact(method))
    assert plan.macs <= budget
    assert FAMILIES[model_type].name == describe(small).family.name
    assert torch.isfinite(outputs(small, found.data["select"][0])).all()

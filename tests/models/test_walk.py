"""Walking a model block by block is running it; and nothing that is found depends on where weights and states live."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from calibrated import recipe, stock
from families import MODEL_TYPES, heads, tiny, tiny_batches
from residences import OneBlock
from slimformer.calibrate.collect import collect
from slimformer.calibrate.metric import fisher_metric
from slimformer.models import describe
from slimformer.models.residence import IN_MEMORY
from slimformer.models.walk import ending_in, last_states, plain_call, record, rehearse
from slimformer.rewrite.apply import Cut, apply
from slimformer.rewrite.probe import probe
from slimformer.rewrite.refine import refine

KINDS = ("llama", "bert", "gpt2", "opt", "vit")
HEADS = [(kind, head) for kind in MODEL_TYPES for head in heads(kind)]


class Stopped(BaseException):
    """Raised where a run is to end."""


def stopping_at(block: int) -> Any:
    def progress(*arguments: Any) -> None:
        if arguments[-2 if len(arguments) > 1 else -1] == block:
            raise Stopped

    return progress


def tensors(found: Any) -> dict[str, torch.Tensor]:
    """Everything a thing is made of that has bits."""
    if isinstance(found, torch.Tensor):
        return {"": found}
    if isinstance(found, int | float | str | None):
        return {repr(found): torch.zeros(())}
    named = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else None
    parts = vars(found).items() if named is None else named
    return {f"{name}.{key}": tensor for name, part in parts for key, tensor in tensors(part).items()}


def assert_same_bits(a: Any, b: Any) -> None:
    ours, theirs = tensors(a), tensors(b)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(("kind", "head"), HEADS)
@torch.no_grad()
def test_a_walk_ends_where_the_model_does(kind, head):
    model = tiny(kind, head)
    architecture, batches = describe(model), tiny_batches(model, 2)
    states = last_states(model, architecture, batches, "walk")
    for batch, state in zip(batches, states, strict=True):
        expected = model(**batch.inputs)
        with ending_in(model, architecture, [(batch, state)]):
            found = model(**batch.inputs, **plain_call(architecture))
        for name, value in found.items():
            assert torch.equal(value, expected[name]), name
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_trail_has_the_state_before_every_block_and_after_the_last(kind):
    model = tiny(kind)
    architecture, batches = describe(model), tiny_batches(model, 2)
    trails = record(model, architecture, batches, "trail")
    for trail, start in zip(trails, rehearse(model, architecture, batches), strict=True):
        assert len(trail.states) == architecture.n_blocks + 1
        assert torch.equal(trail.states[0], start.state)
        expected = model.base_model(**trail.batch.inputs, output_hidden_states=True).hidden_states
        assert all(torch.equal(a, b) for a, b in zip(trail.states[:-1], expected[:-1], strict=True))
    ends = last_states(model, architecture, batches, "walk")
    assert all(torch.equal(trail.states[-1], end) for trail, end in zip(trails, ends, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_metric_does_not_depend_on_the_residence(kind, tmp_path):
    model = tiny(kind)
    batches = tiny_batches(model, 2)
    expected = fisher_metric(model, batches)
    residence = OneBlock(model, tmp_path)
    assert_same_bits(fisher_metric(model, batches, residence=residence), expected)
    assert_same_bits(fisher_metric(model, batches, residence=residence), expected)  # as noted
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"metric"}  # states on the way are gone


@pytest.mark.parametrize("kind", KINDS)
def test_moments_do_not_depend_on_the_residence_nor_on_a_stop(kind, tmp_path):
    model = tiny(kind)
    data = {"fit": tiny_batches(model, 2), "select": tiny_batches(model, 1, seed=1)}
    metric = fisher_metric(model, data["fit"])
    expected = list(collect(model, describe(model), data, metric, joint=True))
    residence, found = OneBlock(model, tmp_path), []
    for stop in (1, 3):
        walk = collect(model, describe(model), data, metric, joint=True, residence=residence)
        for block in walk:
            found.append(block)
            residence.finish("calibrate", block.error_weight)
            if len(found) == stop:
                break
        walk.close()
    assert_same_bits(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_probes_do_not_depend_on_the_residence_nor_on_a_stop(kind, tmp_path):
    known, how = stock(kind), recipe(ridge=1e-6, metric="squares")
    cut = Cut(how, known.curves(how), lambda i: known.blocks[i])
    expected = probe(known.model, cut, known.data["select"])
    model = deepcopy(known.model)
    residence = OneBlock(model, tmp_path)
    with pytest.raises(Stopped):
        probe(model, cut, known.data["select"], residence=residence, progress=stopping_at(2))
    assert len(residence.notes("probe")) == 2
    assert probe(model, cut, known.data["select"], residence=residence) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_and_its_correction_do_not_depend_on_the_residence_nor_on_a_stop(kind, tmp_path):
    known, how = stock(kind), recipe(ridge=1e-6, metric="squares", ffn="neurons")
    plan, curves = known.plan(0.6, how), known.curves(how)
    cut = Cut(plan, curves, lambda i: known.blocks[i])
    small = apply(plan, known.model, curves, cut.moments)
    done = refine(small, known.model, cut, known.data)
    dense = deepcopy(known.model)
    residence = OneBlock(dense, tmp_path)
    again = apply(plan, dense, curves, cut.moments, residence=residence)
    with pytest.raises(Stopped):
        refine(again, dense, cut, known.data, residence=residence, progress=stopping_at(1))
    assert len(residence.notes("correct")) == 1
    assert refine(again, dense, cut, known.data, residence=residence) == done
    assert_same_bits(residence.of_copy.all_weights(), dict(small.state_dict()))


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_correction_that_is_taken_back_leaves_the_cut_wherever_it_lives(kind, tmp_path, monkeypatch):
    known, how = stock(kind), recipe(ridge=1e-6, metric="squares", ffn="neurons")
    plan, curves = known.plan(0.6, how), known.curves(how)
    cut = Cut(plan, curves, lambda i: known.blocks[i])
    expected = apply(plan, known.model, curves, cut.moments).state_dict()
    monkeypatch.setattr("slimformer.rewrite.refine._uncorrected_harm", lambda *_: -1.0)  # nothing is that good
    for residence in (IN_MEMORY, OneBlock(deepcopy(known.model), tmp_path)):
        dense = residence.model if isinstance(residence, OneBlock) else known.model
        small = apply(plan, dense, curves, cut.moments, residence=residence)
        (done,) = refine(small, dense, cut, known.data, residence=residence)
        assert done.site == "all"
        found = residence.of_copy.all_weights() if isinstance(residence, OneBlock) else small.state_dict()
        assert_same_bits(dict(found), dict(expected))

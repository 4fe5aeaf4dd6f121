"""Blocks with any number of parts, models with any number of stacks: from description to a smaller saved model."""

from dataclasses import replace

import pytest
import torch

import slimformer
import stacked
from calibrated import calibrated, recipe
from families import LENGTH, VOCABULARY, tiny_batches
from slimformer.calibrate.provenance import Provenance
from slimformer.calibrate.store import begin, open_statistics, write_block, write_weights
from slimformer.checkpoint.save import save
from slimformer.errors import CannotGroup, UnknownArchitecture, UnknownMethod
from slimformer.inspect.summary import inspection
from slimformer.models import FAMILIES, describe
from slimformer.models.architecture import HEADS, NEURONS, block_of
from slimformer.models.load import in_memory
from slimformer.models.walk import forward, rehearse
from slimformer.plan import Budget
from slimformer.plan.cost import block_cost, kv_cache_bytes
from slimformer.plan.plan import Plan, check_fits
from slimformer.rewrite.apply import Cut
from slimformer.rewrite.correct import correct
from slimformer.steps.depth import blocks_to_drop
from slimformer.steps.long_context import LongContext, require_groupable
from stacked import last

MODELS = {"macaron": stacked.macaron, "bart": stacked.bart}
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """A family of these tests and of nowhere else."""
    monkeypatch.setitem(FAMILIES, "macaron", stacked.MACARON)


def test_sites_are_named_by_stack_block_and_part():
    names = [site.name for site in describe(stacked.bart())]
    assert names[:2] == ["encoder.blocks.0.attn.heads", "encoder.blocks.0.ffn.hidden"]
    assert names[-3:] == [f"decoder.blocks.2.{part}" for part in ("attn.heads", "cross.heads", "ffn.hidden")]
    assert [site.name for site in describe(stacked.macaron())][:3] == [
        "blocks.0.first.hidden", "blocks.0.attn.heads", "blocks.0.second.hidden"
    ]  # fmt: skip
    assert block_of(names[-1]) == ("decoder", 2) and block_of("blocks.7.attn.vo") == ("", 7)


def test_parts_of_the_same_name_are_refused():
    stack = stacked.MACARON.stacks[0]
    with pytest.raises(ValueError, match="need names of their own"):
        replace(stacked.MACARON, stacks=(replace(stack, parts=stack.parts[1:2] * 2),))
    with pytest.raises(ValueError, match="need names of their own"):
        replace(stacked.MACARON, stacks=(stack, stack))


def test_blocks_are_counted_through_all_stacks():
    architecture = describe(stacked.bart())
    assert [block.index for block in architecture.blocks] == [0, 1, 2, 3, 4]
    assert [len(stack.blocks) for stack in architecture.stacks] == [2, 3]
    assert {architecture.layout(site).name for site in architecture.blocks[2].sites} == {"decoder"}
    assert architecture.inside("model.decoder.layers.0.fc1.weight") and not architecture.inside("model.shared.weight")


@every_model
def test_parameters_of_sites_are_those_of_the_matrices(name):
    model = MODELS[name]()
    architecture = describe(model)
    modules = {path for site in architecture for path in (site.reader, *(w.module for w in site.writers))}
    counted = sum(p.numel() for path in modules for p in model.get_submodule(path).parameters())
    biases = sum(site.outer for site in architecture)  # of readers: they depend on no size
    assert block_cost(architecture, LENGTH).params == counted - biases


def test_only_decoders_have_a_cache():
    architecture = describe(stacked.bart())
    heads = sum(len(block.heads) for block in architecture.stacks[1].blocks)
    assert kv_cache_bytes(architecture, LENGTH, 4) == heads * 2 * 32 * LENGTH * 4
    assert kv_cache_bytes(describe(stacked.macaron()), LENGTH, 4) == 0


@every_model
def test_the_walk_ends_where_the_model_does(name):
    """State after the last block, as a forward pass has it, though the decoder starts from what the encoder gave."""
    model = MODELS[name]()
    architecture, batch = describe(model), tiny_batches(model, 1)[0]
    (stream,) = rehearse(model, architecture, [batch])
    with torch.no_grad():
        for visit in forward(model, architecture):
            visit.advance(stream)
        wanted = model.base_model(**batch.inputs, output_hidden_states=True)
    found = stream.state if name == "bart" else model.norm(stream.state)
    assert torch.equal(found, wanted.last_hidden_state)


@every_model
def test_moments_are_stored_and_read_again(name, tmp_path):
    found = calibrated(MODELS[name]())
    weights = {site: block.error_weight for block in found.blocks for site in block.sites}
    made = Provenance("m", "f", found.architecture.model_type, "d", "h", 0, LENGTH, {"fit": 1, "select": 1},
                      "float64", found.architecture.n_blocks, {})  # fmt: skip
    begin(tmp_path, made)
    for block in found.blocks:
        write_block(tmp_path, block)
    write_weights(tmp_path, weights)
    again = open_statistics(tmp_path)
    assert again.weights() == weights
    for block in found.blocks:
        assert again.block(block.block).sites.keys() == block.sites.keys()


@every_model
def test_a_plan_of_everything_changes_nothing(name):
    found, how = calibrated(MODELS[name]()), recipe("uniform")
    plan = found.plan(1.0, how)
    check_fits(Plan.from_json(plan.to_json()), found.architecture, "")
    batch = tiny_batches(found.model, 1, seed=3)[0]
    assert torch.equal(last(found.apply(plan, how), batch.inputs), last(found.model, batch.inputs))


@every_model
@pytest.mark.parametrize("name_of_recipe", ["uniform", "balanced", "stat"])
def test_a_budget_makes_a_smaller_model_that_comes_back_from_its_folder(name, name_of_recipe, tmp_path):
    found, how = calibrated(MODELS[name]()), recipe(name_of_recipe, attention="heads", ffn="neurons")
    plan = found.plan(0.6, how)
    small = found.apply(plan, how)
    architecture = describe(small)
    assert {site.name: site.units for site in architecture} == {site: size.units for site, size in plan.sizes.items()}
    assert block_cost(architecture, LENGTH) == block_cost(found.architecture, LENGTH, plan.sizes)
    assert 0.5 < block_cost(architecture, LENGTH).macs / block_cost(found.architecture, LENGTH).macs <= 0.6
    cut = {site.part.name for site in found.architecture if plan.sizes[site.name].units < site.units}
    assert cut == {part.name for stack in found.architecture.stacks for part in stack.layout.parts}
    batch = tiny_batches(small, 1, seed=3)[0]
    before = last(small, batch.inputs)
    save(small, tmp_path / "small", verify=False)
    again = slimformer.load(tmp_path / "small")
    assert describe(again).sites == architecture.sites
    torch.testing.assert_close(last(again.double(), batch.inputs), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name_of_recipe", ["uniform", "balanced", "stat"])
def test_sizes_the_config_can_say_are_said_in_its_words(name_of_recipe, tmp_path):
    found, how = calibrated(stacked.macaron()), recipe(name_of_recipe, attention="heads", ffn="neurons")
    small = found.apply(found.plan(0.8, how, format="plain"), how)
    sizes = {site.part.name: site.units for site in describe(small)}
    assert (small.config.first_size, small.config.second_size) == (sizes["first"], sizes["second"]) != (48, 24)
    batch = tiny_batches(small, 1, seed=3)[0]
    save(small, tmp_path / "small", verify=False)
    assert not hasattr(slimformer.load(tmp_path / "small").config, "slimformer")
    again = slimformer.load(tmp_path / "small").double()
    torch.testing.assert_close(last(again, batch.inputs), last(small, batch.inputs), rtol=1e-4, atol=1e-4)


@every_model
def test_correction_brings_the_last_state_nearer(name):
    """Every reader of every part is fitted on what reaches it, in all stacks."""
    found, how = calibrated(MODELS[name]()), recipe("uniform", ridge=1e-6)
    plan = found.plan(0.6, how)
    small = found.apply(plan, how)
    done = correct(small, found.model, Cut(plan, found.curves(how), lambda i: found.blocks[i]), found.data)
    assert {each.site for each in done.corrections} == {site.name for site in found.architecture}
    assert all(each.after <= each.before for each in done.corrections)
    assert sum(each.after < each.before for each in done.corrections) > len(done.corrections) / 2


def test_what_knows_one_stack_or_one_part_refuses_others_in_one_line():
    for make in MODELS.values():
        architecture = describe(make())
        block = architecture.blocks[-1]
        with pytest.raises(UnknownArchitecture, match=r"blocks.2 has 2 (att|feed).*, and this works"):
            block.one(HEADS if len(block.heads) > 1 else NEURONS)
    with pytest.raises(UnknownMethod, match="several stacks"):
        blocks_to_drop(describe(stacked.bart()), Budget(0.5))
    with pytest.raises(CannotGroup, match="models of one stack"):
        require_groupable(stacked.bart(), describe(stacked.bart()), LongContext(k=16))


@every_model
def test_balanced_runs_from_end_to_end(name, tmp_path):
    """Probes, ranks where a block has one attention, refinement, evaluation, a folder that was verified."""
    ids = torch.randint(5, VOCABULARY, (80, LENGTH), generator=torch.Generator().manual_seed(0))
    model = MODELS[name]().base_model
    result = slimformer.compress(model, ids, macs=0.6, tokens=800, timing=False)
    assert 0.5 < result.plan.macs <= 0.6
    result.save(tmp_path / "small", verify=name == "bart")  # a fresh process knows no macaron
    inputs = tiny_batches(model, 1, seed=3)[0].inputs
    torch.testing.assert_close(last(slimformer.load(tmp_path / "small"), inputs), last(result.model, inputs))


@every_model
def test_what_it_is_made_of_is_shown(name):
    model = MODELS[name]().base_model
    architecture = describe(model)
    seen = inspection(in_memory(model, None), architecture, LENGTH)
    inside = sum(p.numel() for stack in architecture.stacks for p in model.get_submodule(stack.path).parameters())
    assert seen["params"]["blocks"] == inside
    assert seen["macs_per_token"]["blocks"] == block_cost(architecture, LENGTH).macs
    assert seen["parameters"]["exact"] == seen["params"]["total"]

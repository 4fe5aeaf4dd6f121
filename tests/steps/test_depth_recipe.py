"""The recipe `depth`: plain checkpoints with fewer blocks, in every family that can have them."""

import copy

import pytest
import torch

import slimformer
from families import LENGTH, MODEL_TYPES, VOCABULARY, tiny, tiny_batches
from slimformer.calibrate.gather import Data
from slimformer.decompose.depth import Rows, identity, least_squares, relative_error
from slimformer.errors import BudgetOutOfReach, PlanDoesNotFit, UnknownMethod
from slimformer.models import FAMILIES, describe
from slimformer.models.description import is_pre_norm
from slimformer.plan import Budget
from slimformer.rewrite.depth import drop_blocks
from slimformer.steps.depth import Depth, blocks_to_drop, make_shallow

POST_NORM = ("bert", "roberta", "distilbert")
PRE_NORM = tuple(name for name in MODEL_TYPES if name not in POST_NORM)
every_family = pytest.mark.parametrize("model_type", MODEL_TYPES)


def how(by="linear"):
    return Depth(by=by, macs=0.7)


def data_of(model):
    splits = {"fit": tiny_batches(model, 4), "select": tiny_batches(model, 1, seed=1)}
    return Data(splits, "random", "", 0, LENGTH)


def logits(model):
    batch = tiny_batches(model, 1, seed=2)[0]
    with torch.no_grad():
        return model(**batch.inputs).logits


@torch.no_grad()
def silence(model, i):
    """Let block i add nothing to the stream."""
    for site in describe(model).blocks[i].sites:
        reader = model.get_submodule(site.reader)
        reader.weight.zero_()
        if reader.bias is not None:
            reader.bias.zero_()


@pytest.mark.parametrize("model_type", PRE_NORM)
@pytest.mark.parametrize("depth", ["drop", "linear", "cosine"])
def test_a_block_that_adds_nothing_is_the_one_to_go(model_type, depth):
    model = tiny(model_type)
    silence(model, 1)
    small, plan, _ = make_shallow(model, data_of(model), how(depth))
    assert {edit.site for edit in plan.edits if not edit.keep} == {"blocks.1.attn.heads", "blocks.1.ffn.hidden"}
    torch.testing.assert_close(logits(small), logits(model), rtol=1e-3, atol=1e-3)


@every_family
def test_a_plain_checkpoint_with_fewer_blocks(model_type, tmp_path):
    model = tiny(model_type)
    before = copy.deepcopy(model.state_dict())
    small, plan, done = make_shallow(model, data_of(model), how("drop" if model_type in POST_NORM else "linear"))
    assert describe(small).n_blocks == small.config.num_hidden_layers == 2 and plan.macs == pytest.approx(2 / 3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.after <= each.before for each in done)
    small.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(logits(again), logits(small))
    if FAMILIES[model_type].causal:  # keys and values are found under the new numbers
        ids = tiny_batches(model, 1)[0].inputs["input_ids"][:2, :6]
        first = small(input_ids=ids[:, :5], use_cache=True)
        then = small(input_ids=ids[:, 5:], past_key_values=first.past_key_values, use_cache=True)
        torch.testing.assert_close(then.logits[:, -1], small(input_ids=ids).logits[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model_type", POST_NORM)
def test_after_norms_blocks_can_only_be_dropped(model_type):
    model = tiny(model_type)
    architecture = describe(model)
    last = architecture.sites[-1]
    assert not is_pre_norm(model, architecture.layout(last), last.part)
    with pytest.raises(UnknownMethod, match="a norm comes after"):
        make_shallow(model, data_of(model), how("cosine"))


def test_budgets_count_whole_blocks():
    architecture = describe(tiny("llama"))
    assert [blocks_to_drop(architecture, Budget(f)) for f in (1.0, 0.99, 0.7, 0.5, 1 / 3)] == [0, 1, 1, 2, 2]
    with pytest.raises(BudgetOutOfReach, match=r"the minimum for this model is 0\.334"):
        blocks_to_drop(architecture, Budget(0.3))


def ids(rows=80):
    return torch.randint(5, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(0))


def test_compress_saves_what_opens_in_a_fresh_process(tmp_path):
    result = slimformer.compress(tiny("llama"), ids(), macs=0.7, recipe="depth", timing=False)
    assert result.report.macs_kept == pytest.approx(2 / 3) == result.plan.macs
    assert [site["keep"] for site in result.report.sites].count(0) == 2
    assert result.report.format == "plain" and result.report.metrics
    result.save(tmp_path / "small")  # verified there
    assert not (tmp_path / "small" / "modeling_slimformer.py").exists()


def test_what_cannot_be_had_is_refused():
    with pytest.raises(BudgetOutOfReach, match="takes no max_kl=…; give macs=…, params=… or latency=…"):
        slimformer.compress(tiny("llama"), ids(), max_kl=0.1, recipe="depth")
    with pytest.raises(BudgetOutOfReach, match="leaves none of 3 blocks"):
        slimformer.compress(tiny("llama"), ids(), macs=0.2, recipe="depth")
    ragged = slimformer.compress(tiny("llama"), ids(), macs=0.7, timing=False, refine=False).model
    with pytest.raises(PlanDoesNotFit, match="sizes of their own"):
        drop_blocks(ragged, describe(ragged), [1])


def test_a_map_that_does_harm_is_not_taken():
    torch.manual_seed(0)
    y, m = torch.randn(20, 32, dtype=torch.float64), torch.randn(20, 32, dtype=torch.float64)
    fit = Rows(y, m, y + m + 0.3 * torch.randn(20, 32, dtype=torch.float64))
    z, n = torch.randn(500, 32, dtype=torch.float64), torch.randn(500, 32, dtype=torch.float64)
    held = Rows(z, n, z + n + 0.3 * torch.randn(500, 32, dtype=torch.float64))
    assert relative_error(held, least_squares(fit, held, bias=True)) <= relative_error(held, identity(32))


def test_scales_that_go_by_the_number_of_a_block_are_refused_before_the_work():
    model = tiny("gpt2", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(UnknownMethod, match="numbered anew"):
        make_shallow(model, data_of(model), how())


def test_there_is_no_refinement_of_depth():
    model = tiny("gpt2")
    with pytest.raises(UnknownMethod, match="no refinement"):
        slimformer.compress(model, torch.randint(VOCABULARY, (8, LENGTH)), macs=0.7, recipe="depth", refine=True)

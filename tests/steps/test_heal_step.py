"""The step `heal` in recipes, and `slimformer.heal` on a folder: what is refused, what is reported, what stays."""

import pytest
import torch

import slimformer
from families import tiny
from slimformer.errors import (
    AlreadyRounded,
    BudgetOutOfReach,
    PlanDoesNotFit,
    UnknownMethod,
    UnknownRecipe,
    WrongArgument,
)
from slimformer.recipe import load_recipe, with_arguments, with_settings

IDS = torch.randint(0, 60, (120, 16), generator=torch.Generator().manual_seed(0))
SHORT = {"heal.tokens": 3000, "heal.rate": 1e-3}


def names(recipe):
    return [type(step).__name__.lower() for step in recipe.steps]


def test_an_argument_adds_it_after_what_is_lost_and_before_bits():
    recipe = with_arguments(load_recipe("balanced"), {"macs": 0.5, "heal": 10.0, "bits": 8})
    assert names(recipe) == ["cut", "refine", "heal", "quantize"]
    assert recipe.steps[2].budget == ("minutes", 10.0)


def test_one_budget_is_taken_and_ten_minutes_are_usual():
    step = with_settings(load_recipe("balanced"), {"heal.phases": "local"}).steps[-1]
    assert step.budget == ("minutes", 10.0)
    both = with_settings(load_recipe("balanced"), {"heal.minutes": 1, "heal.tokens": 5}).steps[-1]
    with pytest.raises(WrongArgument, match="minutes and tokens were given to heal"):
        both.require_complete()


def test_bits_before_it_and_searches_around_it_are_refused():
    with pytest.raises(UnknownRecipe, match="put heal first"):
        slimformer.Recipe("r", "s", tuple(load_recipe("balanced").steps[:0]) + _steps("quantize", "heal"))
    for search in ({"max_kl": 0.1}, {"size": 10**6}):
        with pytest.raises(BudgetOutOfReach, match="run `slimformer heal` on the result"):
            slimformer.compress(tiny("llama"), IDS, heal=1.0, **search)


def _steps(*order):
    from slimformer.recipe import recipe_of

    return tuple(recipe_of("r", "s", {name: {}}).steps[0] for name in order)


def test_compress_reports_what_was_won_on_text_that_decided_nothing():
    report = slimformer.compress(tiny("llama"), IDS, macs=0.5, timing=False, settings=SHORT).report
    home = report.healing["won"]["home"]
    assert report.healing["kept"] and home["after"] < home["before"] and home["low"] <= home["change"] <= home["high"]
    assert report.metric("kl")["small"] == pytest.approx(home["after"], rel=0.05)  # other positions


@pytest.fixture(scope="module")
def cut():
    dense = tiny("llama")
    return dense, slimformer.compress(dense, IDS, macs=0.5, timing=False)


def test_a_folder_is_healed_to_a_folder_that_opens(cut, tmp_path):
    dense, small = cut
    small.save(tmp_path / "small", verify=False)
    how = {"tokens": 3000, "rate": 1e-3, "device": "cpu"}
    result = slimformer.heal(tmp_path / "small", IDS, teacher=dense, out=tmp_path / "healed", verify=False, **how)
    assert result.report.healing["kept"] and result.report.recipe == "balanced"
    assert not list(tmp_path.glob(".*.healing")), "the work folder goes when the result is there"
    opened = slimformer.load(tmp_path / "healed")
    with torch.no_grad():
        assert torch.allclose(opened(IDS[:2]).logits, result.model(IDS[:2]).logits, atol=1e-5)
    assert (tmp_path / "healed" / "plan.json").read_text() == (tmp_path / "small" / "plan.json").read_text()


def test_a_folder_in_fewer_bits_is_refused_with_the_right_order(cut, tmp_path):
    dense, small = cut
    slimformer.quantize(small.model, IDS, bits=8, timing=False).save(tmp_path / "narrow", verify=False)
    with pytest.raises(AlreadyRounded, match="heal first, then quantize"):
        slimformer.heal(tmp_path / "narrow", IDS, teacher=dense, tokens=100)


def test_its_own_teacher_has_nothing_to_teach():
    dense = tiny("llama")
    with pytest.raises(WrongArgument, match="nothing to learn"):
        slimformer.heal(dense, IDS, teacher=dense, tokens=100)


def test_where_whole_blocks_are_gone_the_others_stand_for_them():
    dense = tiny("llama")
    how = {"heal.tokens": 3000, "heal.phases": "local"}
    result = slimformer.compress(dense, IDS, recipe="depth", macs=0.67, timing=False, settings=how)
    assert result.report.healing["kept"] and len(result.report.healing["blocks"]) == 2


def test_cut_and_heal_in_turns_with_the_dense_model_as_the_teacher_of_both(tmp_path):
    dense = small = tiny("llama")
    for turn in ("one", "two"):
        slimformer.compress(small, IDS, macs=0.6, timing=False).save(tmp_path / turn, verify=False)
        small = tmp_path / f"{turn}-healed"
        how = {"tokens": 4500, "phases": "global", "verify": False, "out": small}
        result = slimformer.heal(tmp_path / turn, IDS, teacher=dense, **how)
        assert result.report.healing["kept"] and result.report.healing["won"]["home"]["change"] < 0
    both = [model.eval()(IDS[:1]).logits for model in (slimformer.load(small), result.model)]
    assert torch.allclose(*both, atol=1e-5)
    sizes = [sum(p.numel() for p in model.model.layers.parameters()) for model in (result.model, dense)]
    assert sizes[0] < 0.5 * sizes[1]


def test_rounds_are_cuts_of_the_same_ratio_healed_one_by_one_within_one_budget():
    how = {"heal.tokens": 6000, "heal.rounds": 2, "heal.phases": "global"}
    result = slimformer.compress(tiny("llama"), IDS, macs=0.4, timing=False, settings=how)
    first, last = result.report.healing["turns"]
    assert first["left"] <= 0.4**0.5 and result.report.macs_kept == last["left"] <= 0.4 < first["left"]
    assert result.report.budget == 0.4 and result.report.healing["budget"] == {"tokens": 3000}
    assert first["helped"] and last["helped"]


@pytest.mark.parametrize("more", [{"cut.macs": 0.5, "quantize.bits": 8}, {"cut.latency": 0.5}])
def test_what_cannot_be_done_in_turns_is_refused(more):
    with pytest.raises(PlanDoesNotFit, match=r"heal\.rounds"):
        slimformer.compress(tiny("llama"), IDS, settings={"heal.rounds": 2, **more})


def test_there_are_no_turns_without_a_cut():
    with pytest.raises(UnknownMethod, match="nothing is cut between"):
        slimformer.heal(tiny("llama", seed=1), IDS, teacher=tiny("llama"), rounds=2)

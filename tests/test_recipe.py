"""A recipe is a list of steps; flags are short for settings; what is wrong is refused with what would be right."""

from itertools import permutations

import pytest
from pydantic import ValidationError

import slimformer
from families import LENGTH, VOCABULARY, tiny
from slimformer.errors import BudgetOutOfReach, UnknownMethod, UnknownRecipe
from slimformer.plan.asked import BUDGETS
from slimformer.plan.settings import CutSettings
from slimformer.recipe import Recipe, cut_settings, load_recipe, recipe_of, with_arguments, with_settings
from slimformer.recipes import names, text_of
from slimformer.steps import APART, NAMES, STEPS
from slimformer.steps.calibration import PROBED
from terminal import done, refused

GOOD = """name: mine
summary: an experiment
steps:
  - cut: {selector: interpolative, ridge: 1.0e-2, params: 0.7}
  - refine
  - quantize: {bits: 8}
"""
NEEDED = {"head": {"data": "labels.tsv"}}  # settings without a default


def made_of(*steps):
    return recipe_of("mine", "an experiment", *({name: NEEDED.get(name, {})} for name in steps))


def steps_of(recipe):
    return [NAMES[type(step)] for step in recipe.steps]


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_recipes_of_the_package_are_valid_and_named_like_their_file(name):
    found = load_recipe(name)
    assert found.name == name and found.summary and found.steps
    assert {step.name for step in found.steps} == {name}
    said = found.to_json()
    assert recipe_of(said["name"], said["summary"], *said["steps"]) == found


def test_the_promised_recipes_are_there():
    assert {"balanced", "fast", "stat", "uniform"} <= set(names())


def test_a_recipe_may_be_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text(GOOD)
    found = load_recipe(str(tmp_path / "mine.yaml"))
    cut = cut_settings(found)
    assert (found.name, found.summary, steps_of(found)) == ("mine", "an experiment", ["cut", "refine", "quantize"])
    assert (cut.name, cut.selector, cut.ridge, cut.multiple_of) == ("mine", "interpolative", 1e-2, 8)
    assert found.after_cut == found.steps[1:]
    assert text_of(str(tmp_path / "mine.yaml")) == GOOD
    assert load_recipe(found) is found


def test_an_unknown_name_lists_the_names():
    with pytest.raises(UnknownRecipe, match=f"no recipe 'magic'; choose from {', '.join(names())}"):
        load_recipe("magic")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("params", "colour"), "cut.colour: there is no such setting; settings of cut: selector"),
        (GOOD.replace("params: 0.7", "multiple_of: many"), "cut.multiple_of: Input should be a valid integer"),
        (GOOD.replace("params: 0.7", "multiple_of: 0"), "cut.multiple_of: Input should be greater than or equal to 1"),
        (GOOD.replace("1.0e-2", "-1"), "cut.ridge: Input should be greater than or equal to 0"),
        (GOOD.replace("interpolative", "magic"), "cut.selector: Input should be 'elimination' or 'interpolative'"),
        (GOOD.replace("refine", "polish"), f"there is no step 'polish'; choose from {', '.join(STEPS)}"),
        (GOOD.replace("refine", "cut: [0.5]"), "cut needs settings by name; see `slimformer steps`"),
        (GOOD.replace("{bits: 8}", "{name: other}"), "quantize needs settings by name"),
        (GOOD.replace("- refine", "- 7"), "7 is no step; write `- cut: {macs: 0.5}`"),
        (GOOD.replace("- refine", "- {refine: {}, sparsify: {}}"), "is no step"),
        (GOOD + "  - head: {}\n", "head.data: Field required"),
        (GOOD + "colour: red\n", "needs the fields name, summary, steps"),
        (GOOD.replace("name: mine", "name: 7"), "two texts, and a list of steps"),
        ("name: mine\nsummary: old\nridge: 1.0e-2\n", "needs the fields name, summary, steps"),
        ("name: mine\nsummary: old\nsteps: cut\n", "two texts, and a list of steps"),
        ("name: mine\nsummary: old\nsteps: []\n", "has no steps; see `slimformer steps`"),
        ("", "needs the fields name, summary, steps"),
        ("- a\n- b\n", "needs the fields name, summary, steps"),
        ("name: [\n", "is not valid YAML"),
        ("a: b: c\n", "is not valid YAML"),
        ("!!python/object/apply:os.getcwd []\n", "is not valid YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UnknownRecipe, match="mine") as error:
        load_recipe(str(tmp_path / "mine.yaml"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("broken", ["nowhere.yaml", "folder.yaml", "bytes.yml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, broken):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.yml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(UnknownRecipe, match=broken):
        load_recipe(str(tmp_path / broken))


def test_a_recipe_cannot_be_changed_behind_ones_back():
    found = load_recipe("balanced")
    assert isinstance(found, Recipe)
    with pytest.raises(AttributeError):
        found.name = "mine"
    with pytest.raises(ValidationError, match="frozen"):
        cut_settings("balanced").ridge = 0.0


def test_probes_are_made_with_the_settings_of_balanced():
    """`calibrate` writes them before it is known what will be made of them."""
    found = cut_settings("balanced")
    assert found.model_dump(include=set(CutSettings.model_fields)) == PROBED.model_dump()
    assert found.name == PROBED.name


@pytest.mark.parametrize("name", ["depth", "long-context", "lossless"])
def test_what_cuts_no_widths_has_no_settings_of_a_cut(name):
    with pytest.raises(UnknownMethod, match=rf"'{name}' cuts no widths .*; use `slimformer compress`"):
        cut_settings(name)


# --- the order of steps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), APART)
def test_steps_that_cannot_stand_together_are_refused(first, second):
    with pytest.raises(UnknownRecipe) as error:
        made_of(first, second)
    assert str(error.value) == f"the recipe 'mine' has both {first} and {second}; {APART[first, second]}"


@pytest.mark.parametrize(("before", "after"), permutations(STEPS, 2))
def test_steps_come_in_the_order_of_their_places(before, after):
    """Whatever is not apart may stand together in one order, and in that alone."""
    shapes = STEPS[before].place == STEPS[after].place == 0
    alone = "refine" in (before, after) and "cut" not in (before, after)
    apart = {(before, after), (after, before)} & APART.keys()
    if shapes or alone or apart or STEPS[before].place > STEPS[after].place:
        with pytest.raises(UnknownRecipe, match=f"the recipe 'mine' has .*{before if shapes or apart else ''}"):
            made_of(before, after)
    else:
        assert steps_of(made_of(before, after)) == [before, after]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("cut", "quantize", "refine"), "has refine after quantize; put refine first, and each once"),
        (("cut", "refine", "refine"), "has refine after refine; put refine first, and each once"),
        (("refine",), "has refine without cut, and there is nothing to correct"),
        (("lossless", "cut"), "has lossless and cut; one of them can be done to a model at a time"),
        ((), "has no steps"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(steps, message):
    with pytest.raises(UnknownRecipe) as error:
        made_of(*steps)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("first", ["lossless", "depth", "long_context", "cut"])
def test_weights_may_be_stored_in_fewer_bits_after_anything(first):
    found = with_arguments(made_of(first), {"bits": 8, "group": 64})
    assert steps_of(found) == [first, "quantize"]
    assert (found.steps[-1].bits, found.steps[-1].group) == (8, 64)


# --- flags are short for settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["macs", "params", "latency", "total_macs", "max_kl"])
def test_a_budget_is_that_of_the_cut_and_replaces_the_one_of_the_file(tmp_path, name):
    (tmp_path / "mine.yaml").write_text(GOOD)
    found = cut_settings(with_arguments(load_recipe(tmp_path / "mine.yaml"), {name: 0.3}))
    assert {each: getattr(found, each) for each in (*BUDGETS, name)} == {
        **dict.fromkeys(BUDGETS), name: 0.3,
    }  # fmt: skip
    assert found.ridge == 1e-2


def test_two_budgets_are_one_too_many():
    found = cut_settings(with_arguments(load_recipe("balanced"), {"macs": 0.5, "params": 0.5}))
    with pytest.raises(BudgetOutOfReach, match=r"one budget is needed: .* \(found macs=0.5 and params=0.5\)"):
        _ = found.budget


def test_bits_add_a_step_and_refine_takes_one_out():
    balanced = load_recipe("balanced")
    assert steps_of(with_arguments(balanced, {"bits": 4})) == ["cut", "refine", "quantize"]
    assert steps_of(with_arguments(balanced, {"refine": False})) == ["cut"]
    assert steps_of(with_arguments(load_recipe("uniform"), {"refine": True, "bits": 8})) == [
        "cut",
        "refine",
        "quantize",
    ]
    assert with_arguments(balanced, {"refine": True, "macs": None}) == balanced


def test_a_group_belongs_to_the_bits_or_to_the_size_that_leads_to_them():
    balanced = load_recipe("balanced")
    by_bits = with_arguments(balanced, {"bits": 8, "group": 128, "macs": 0.5})
    assert (by_bits.steps[-1].group, cut_settings(by_bits).group) == (128, 64)
    by_size = with_arguments(balanced, {"size": 10**6, "group": 128})
    assert steps_of(by_size) == ["cut", "refine"] and cut_settings(by_size).group == 128
    with pytest.raises(BudgetOutOfReach, match=r"group=… says how bits are stored; give bits=8, bits=4 or a size=…"):
        with_arguments(balanced, {"group": 64, "macs": 0.5})


def test_labelled_rows_add_a_head():
    found = with_arguments(load_recipe("balanced"), {"macs": 0.5, "head_data": "labels.tsv"})
    assert steps_of(found) == ["cut", "refine", "head"] and found.steps[-1].data == "labels.tsv"
    for name in ("lossless", "depth", "long-context"):
        with pytest.raises(UnknownRecipe, match=f"the recipe '{name}' has both .* and head; "):
            with_arguments(load_recipe(name), {"head_data": "labels.tsv"})
    with pytest.raises(UnknownRecipe, match="has both quantize and head; fit the head first"):
        with_arguments(load_recipe("balanced"), {"macs": 0.5, "head_data": "labels.tsv", "bits": 8})


@pytest.mark.parametrize("flag", ["k", "window", "kind", "keep_exact", "steps", "max_kl"])
def test_flags_of_long_texts_are_settings_of_their_step(flag):
    value = "mean" if flag == "kind" else 24
    (step,) = with_arguments(load_recipe("long-context"), {flag: value}).steps
    assert getattr(step, flag) == value


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "balanced",
            {"k": 8},
            "k=… is for the step long_context, and the recipe 'balanced' has none (its steps: cut, ",
        ),
        ("long-context", {"macs": 0.5}, "takes no macs=…; it keeps every weight, so leave it out"),
        ("lossless", {"params": 0.5}, "takes no params=…; it changes no output, so leave it out"),
        ("depth", {"size": 10}, "takes no size=…; give macs=…, params=… or latency=…"),
        ("depth", {"refine": True}, "has no refinement: there is no cut in it to correct"),
    ],
)
def test_a_flag_no_step_takes_is_refused_in_one_line(name, given, message):
    with pytest.raises((UnknownMethod, BudgetOutOfReach)) as error:
        with_arguments(load_recipe(name), given)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_every_flag_is_taken_by_the_field_it_names():
    for step in STEPS.values():
        assert set(step.flags.values()) <= step.model_fields.keys()
        assert all(field.description for field in step.model_fields.values())


# --- every other setting --------------------------------------------------------------------------------------------


def test_any_setting_can_be_changed_by_step_and_key():
    found = with_settings(load_recipe("balanced"), {"cut.ridge": 0.01, "cut.multiple_of": 4, "quantize.bits": 8})
    assert (cut_settings(found).ridge, cut_settings(found).multiple_of) == (0.01, 4)
    assert cut_settings(found).metric == cut_settings("balanced").metric
    assert steps_of(found) == ["cut", "refine", "quantize"]
    assert with_settings(load_recipe("balanced"), {}) == load_recipe("balanced")


@pytest.mark.parametrize("setting", ["ridge", "magic.ridge", "depth.by", "cut", ""])
def test_a_setting_of_no_step_is_refused(setting):
    with pytest.raises(UnknownRecipe) as error:
        with_settings(load_recipe("balanced"), {setting: 1})
    said = f"{setting!r} is no setting of the recipe 'balanced'; its steps are cut, refine: give cut.KEY=VALUE"
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [("cut.colour", "red", "there is no such setting"), ("cut.ridge", "much", "Input should be a valid number")],
)
def test_a_setting_of_the_wrong_name_or_kind_is_refused(setting, value, message):
    with pytest.raises(UnknownRecipe, match=f"'balanced': {setting}: {message}"):
        with_settings(load_recipe("balanced"), {setting: value})


def test_settings_reach_the_plan():
    import torch

    ids = torch.randint(5, VOCABULARY, (80, LENGTH), generator=torch.Generator().manual_seed(0))
    how = {"recipe": "uniform", "macs": 0.6, "timing": False}
    found = slimformer.compress(tiny("llama"), ids, settings={"cut.ridge": 0.01, "cut.absorb_mean": False}, **how)
    assert (found.plan.ridge, found.plan.absorb_mean, found.plan.recipe) == (0.01, False, "uniform")


@pytest.mark.usefixtures("trusting")
def test_the_shell_sets_them_too(shelf, tmp_path):
    how = ("compress", shelf / "llama", "--macs", 0.6, "--recipe", "uniform", "--data", shelf / "text.txt", "-q")
    brief = ("--tokens", 400, "--no-timing", "--out", tmp_path / "small")
    done(*how, *brief, "--set", "cut.ridge=0.01", "--set", "cut.selector=interpolative")
    found = slimformer.Plan.load(tmp_path / "small" / "plan.json")
    assert found.ridge == 0.01 and {edit.method for edit in found.edits} == {"interpolative"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cut.ridge", "--set 'cut.ridge' is not understood; give STEP.KEY=VALUE"),
        ("ridge=0.01", "--set 'ridge=0.01' is not understood; give STEP.KEY=VALUE"),
        ("cut.ridge=[", "--set 'cut.ridge=['"),
        ("cut.ridge=much", "cut.ridge: Input should be a valid number"),
        ("cut.colour=red", "cut.colour: there is no such setting; settings of cut: "),
        ("depth.by=drop", "'depth.by' is no setting of the recipe 'balanced'"),
    ],
)
def test_the_shell_says_what_is_wrong_with_a_setting(text, message, tmp_path):
    assert message in refused("compress", "x", "--macs", 0.5, "--set", text, "--out", tmp_path / "y")


def test_a_recipe_of_ones_own_is_followed_to_the_end(shelf, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nsummary: fewer heads, fewer bits\nsteps:\n"
        "  - cut: {allocation: uniform, macs: 0.7}\n  - quantize: {bits: 8, group: 0, method: nearest}\n"
    )
    found = slimformer.compress(
        shelf / "llama", shelf / "text.txt", recipe=tmp_path / "mine.yaml", tokens=400, timing=False
    )
    assert found.plan.macs <= 0.7 and found.report.recipe == "mine"
    assert found.quantized is not None and found.report.quantization["bits"] == 8
    again = slimformer.compress(
        shelf / "llama", shelf / "text.txt", recipe=tmp_path / "mine.yaml", tokens=400, timing=False, macs=0.9
    )
    assert 0.7 < again.plan.macs <= 0.9

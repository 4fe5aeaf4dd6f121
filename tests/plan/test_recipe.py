"""Recipes of the package are sound; wrong ones are refused with what would be right."""

import pytest
from pydantic import ValidationError

from slimformer.errors import UnknownRecipe
from slimformer.plan.recipe import Recipe, load_recipe, names, text_of

GOOD = "name: mine\nsummary: an experiment\nselector: interpolative\nridge: 1.0e-2\n"


@pytest.mark.parametrize("name", names())
def test_recipes_of_the_package_are_valid_and_named_like_their_file(name):
    assert load_recipe(name).name == name
    assert load_recipe(name).summary


def test_the_promised_recipes_are_there():
    assert {"balanced", "stat", "uniform"} <= set(names())


def test_a_recipe_may_be_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text(GOOD)
    found = load_recipe(str(tmp_path / "mine.yaml"))
    assert (found.name, found.selector, found.ridge, found.multiple_of) == ("mine", "interpolative", 1e-2, 8)
    assert text_of(str(tmp_path / "mine.yaml")) == GOOD


def test_an_unknown_name_lists_the_names():
    with pytest.raises(UnknownRecipe, match=f"no recipe 'magic'; choose from {', '.join(names())}"):
        load_recipe("magic")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "colour: red\n", "colour: Extra inputs are not permitted; fields: name, summary, selector"),
        (GOOD + "multiple_of: many\n", "multiple_of: Input should be a valid integer"),
        (GOOD + "multiple_of: 0\n", "multiple_of: Input should be greater than or equal to 1"),
        (GOOD.replace("1.0e-2", "-1"), "ridge: Input should be greater than or equal to 0"),
        (GOOD.replace("interpolative", "magic"), "selector: Input should be 'elimination' or 'interpolative'"),
        ("summary: nameless\n", "name: Field required"),
        ("", "holds no fields; known are name, summary"),
        ("- a\n- b\n", "holds no fields"),
        ("name: [\n", "is not valid YAML"),
        ("a: b: c\n", "is not valid YAML"),
        ("!!python/object/apply:os.getcwd []\n", "is not valid YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UnknownRecipe, match=r"mine\.yaml") as refused:
        load_recipe(str(tmp_path / "mine.yaml"))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("broken", ["nowhere.yaml", "folder.yaml", "bytes.yml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, broken):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.yml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(UnknownRecipe, match=broken):
        load_recipe(str(tmp_path / broken))


def test_a_recipe_cannot_be_changed_behind_ones_back():
    with pytest.raises(ValidationError, match="frozen"):
        load_recipe("balanced").ridge = 0.0
    assert isinstance(load_recipe("balanced"), Recipe)

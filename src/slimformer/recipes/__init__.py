"""The files of recipes, found by name or path and read as YAML, without torch; `recipe.py` says what they mean."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from slimformer.errors import UnknownRecipe
from slimformer.files.reading import YAML, parse_yaml, read_text

FIELDS = {"name": str, "summary": str, "steps": list}


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml"))


def text_of(name: str) -> str:
    """The YAML of a recipe, by name or path."""
    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        try:
            return read_text(path, YAML)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise UnknownRecipe(
                f"the recipe file {name!r} cannot be read: {reason}; see `slimformer recipes show balanced`"
            ) from error
    if name not in names():
        raise UnknownRecipe(
            f"there is no recipe {name!r}; choose from {', '.join(names())}, or give a path to a .yaml file"
        )
    return (_folder() / f"{name}.yaml").read_text()


def fields_of(name: str) -> dict[str, Any]:
    """Name, summary and steps of a recipe, as the file has them."""
    try:
        fields = parse_yaml(text_of(name))
    except ValueError as error:
        raise UnknownRecipe(f"the recipe {name!r} is not valid YAML: {error}") from error
    if not isinstance(fields, dict) or {key: type(value) for key, value in fields.items()} != FIELDS:
        raise UnknownRecipe(
            f"the recipe {name!r} needs the fields {', '.join(FIELDS)}: two texts, and a list of steps; "
            "see `slimformer recipes show balanced`"
        )
    return fields


def needs_budget(fields: dict[str, Any], budgets: Iterable[str]) -> bool:
    """Has a recipe a step that cuts, and no budget for it in its file?"""
    cuts = [step for step in fields["steps"] if step == "cut" or (isinstance(step, dict) and "cut" in step)]
    given = [step["cut"] or {} for step in cuts if isinstance(step, dict) and isinstance(step["cut"] or {}, dict)]
    return bool(cuts) and not any(name in settings for settings in given for name in budgets)


def _folder() -> resources.abc.Traversable:
    return resources.files("slimformer.recipes")

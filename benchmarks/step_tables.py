"""The steps of recipes and their settings as tables, read off the classes: what docs/formats.md says of them."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from slimformer.messages.words import option, shell_words
from slimformer.steps import APART, STEPS
from slimformer.steps.step import Step
from tables import NothingToRender, markdown


def steps(name: str | None) -> str:
    """Every step with its settings; one of them, or (`apart`) what cannot stand in one recipe."""
    if name == "apart":
        return _of_words(["steps", "instead"], [[f"`{a}`, `{b}`", text] for (a, b), text in APART.items()])
    if name is not None and name not in STEPS:
        raise NothingToRender(f"there is no step {name!r}; choose from {', '.join(STEPS)}")
    return "\n\n".join(_described(each, step) for each, step in STEPS.items() if name in (None, each))


def _described(name: str, step: type[Step]) -> str:
    summary = " ".join((step.__doc__ or "").split("\n\n")[0].split())
    fields = {key: field for key, field in step.model_fields.items() if key != "name"}
    if not fields:
        return f"**`{name}`**: {summary} It has no settings."
    with shell_words():
        flags = {field: f"`{option(flag)}`" for flag, field in step.flags.items()}
    rows = [[f"`{key}`", _default(field), flags.get(key, ""), _meaning(field)] for key, field in fields.items()]
    return f"**`{name}`**: {summary}\n\n{_of_words(['setting', 'default', 'flag', 'meaning'], rows)}"


def _of_words(header: list[str], rows: list[list[str]]) -> str:
    return markdown(header, rows).replace("---:", "---")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    if isinstance(field.default, tuple):
        return ", ".join(f"`{each}`" for each in field.default)
    return "" if field.default is None else f"`{str(field.default).lower()}`"


def _meaning(field: FieldInfo) -> str:
    chosen = [f"`{each}`" for each in _choices(field.annotation)]
    return f"{field.description} ({', '.join(chosen)})" if chosen else str(field.description)


def _choices(annotation: Any) -> tuple[str, ...]:
    """The words of a setting that is one of several, or a list of them."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in _choices(part))

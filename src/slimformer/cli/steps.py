"""The command that lists the steps of recipes, with their settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slimformer.cli import options as opt
from slimformer.cli.output import emit


@opt.grouped
def steps(
    name: Annotated[str, typer.Argument(metavar="STEP", help="one step alone, with all its settings")] = "",
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """List the steps a recipe can have, and what can be set in each: in a file, or by --set STEP.KEY=VALUE."""
    from slimformer.errors import UnknownRecipe
    from slimformer.steps import STEPS

    if name and name not in STEPS:
        raise UnknownRecipe(f"there is no step {name!r}; choose from {', '.join(STEPS)}")
    descriptions = {each: _described(step) for each, step in STEPS.items() if name in ("", each)}

    def tables() -> None:
        for each, description in descriptions.items():
            typer.echo(f"{each}: {description['summary']}")
            for key, setting in description["settings"].items() if name else ():
                typer.echo(f"  {key} = {setting['default']}: {setting['description']}")

    emit(descriptions, shown, tables)


def _described(step: Any) -> dict[str, Any]:
    """First sentence of a step, and its settings with their defaults."""
    fields = {key: field for key, field in step.model_fields.items() if key != "name"}
    settings = {
        key: {"default": None if field.is_required() else field.default, "description": field.description}
        for key, field in fields.items()
    }
    return {"summary": " ".join((step.__doc__ or "").split("\n\n")[0].split()), "settings": settings}

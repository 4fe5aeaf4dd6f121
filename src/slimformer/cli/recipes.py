"""`slimformer recipes`: what comes with the package, to be used or copied."""

from __future__ import annotations

from typing import Annotated

import typer

from slimformer.cli import options as opt
from slimformer.cli.output import emit

recipes = typer.Typer(name="recipes", help="The recipes that come with the package.", no_args_is_help=True)


@recipes.command("ls", epilog="Example: slimformer recipes ls")
@opt.grouped
def recipes_ls(seed: opt.NoSeed = 0, shown: opt.Shown = opt.SHOWN) -> None:
    """List the recipes."""
    from slimformer.recipes import fields_of, names

    summaries = {name: fields_of(name)["summary"] for name in names()}

    def tables() -> None:
        for name, summary in summaries.items():
            typer.echo(f"{name:10} {summary}")

    emit(summaries, shown, tables)


@recipes.command("show", epilog="Example: slimformer recipes show balanced > mine.yaml")
@opt.grouped
def recipes_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a recipe's name or path")],
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Print a recipe: copy it, change it, and give its path to --recipe."""
    from slimformer.recipes import fields_of, text_of

    fields_of(name)

    from slimformer.recipe import load_recipe

    recipe = load_recipe(name)
    emit(recipe.to_json(), shown, lambda: typer.echo(text_of(name), nl=False))

"""A recipe: how to calibrate, select, correct and allocate. YAML files in the package, or a path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slimformer.errors import UnknownRecipe
from slimformer.files.reading import YAML, parse_yaml, read_text
from slimformer.messages.arguments import instance

LosslessRewrite = Literal[
    "value-bias", "key-bias", "silent-heads", "value-ranks", "score-ranks", "duplicate-neurons", "dead-neurons",
    "scales", "interpolation",
]  # fmt: skip


class Recipe(BaseModel):
    """Everything that decides the result besides model, data and budget. Every field is explained in
    docs/formats.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    summary: str
    selector: Literal["elimination", "interpolative"] = "elimination"
    allocation: Literal["uniform", "greedy", "stat-bert", "stat-opt", "stat"] = "greedy"
    ridge: float = Field(default=1e-3, ge=0, le=10, description="relative to the mean diagonal of the Gram matrix")
    absorb_mean: bool = Field(default=True, description="let output biases absorb the mean of what is removed")
    temper: float = Field(default=1.0, ge=0, le=1, description="how far sensitivity probes are believed")
    attention: Literal["heads", "ranks", "best"] = Field(
        default="heads", description="cut attention by whole heads, by the ranks of QK and VO, or whichever is better"
    )
    ffn: Literal["neurons", "bypass", "linear", "best"] = Field(
        default="neurons",
        description="cut feed-forward parts by neurons, always with a linear path beside those left, by replacing all "
        "of them with a linear map, or whichever is better",
    )
    metric: Literal["squares", "fisher"] = Field(
        default="squares", description="count errors of what a block writes, or what they cost at the outputs"
    )
    depth: Literal["none", "drop", "linear", "cosine"] = Field(
        default="none",
        description="drop whole blocks, or replace runs of them by a linear map the writer before absorbs",
    )
    sequence: Literal["none", "cluster", "mean", "least-squares", "learned"] = Field(
        default="none",
        description="let attention run over k groups of keys, the weights staying as they are; no budget",
    )
    refine: bool = Field(default=True, description="correct every reader on what the cut model sends it")
    multiple_of: int = Field(default=8, ge=1, description="neurons are kept in multiples of this")
    rewrites: tuple[LosslessRewrite, ...] = Field(
        default=(), description="only rewrite the model so that its outputs stay the same; no budget, no data"
    )
    allow_empty: bool = Field(default=False, description="may a block lose all its neurons?")


RECIPE = instance("the name of a recipe, a path to a .yaml file, or a Recipe", str, Path, Recipe)


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


def load_recipe(recipe: str | Path | Recipe) -> Recipe:
    """A recipe by name or path, checked; one that is loaded already stays as it is."""
    if isinstance(recipe, Recipe):
        return recipe
    name = str(recipe)
    try:
        data = parse_yaml(text_of(name))
    except ValueError as error:
        raise UnknownRecipe(f"the recipe {name!r} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise UnknownRecipe(f"the recipe {name!r} holds no fields; known are {', '.join(Recipe.model_fields)}")
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnknownRecipe(
            f"the recipe {name!r}: {where}: {first['msg']}; fields: {', '.join(Recipe.model_fields)}"
        ) from None


def _folder() -> resources.abc.Traversable:
    return resources.files("slimformer") / "recipes"

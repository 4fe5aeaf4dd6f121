"""A recipe: a name and a list of steps with their settings. YAML files in the package, or a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slimformer.errors import BudgetOutOfReach, UnknownMethod, UnknownRecipe
from slimformer.messages.arguments import instance
from slimformer.messages.words import either, option
from slimformer.plan.asked import BUDGETS, MEASURES
from slimformer.recipes import fields_of
from slimformer.steps import NAMES, STEPS, require_order
from slimformer.steps.cut import Cut
from slimformer.steps.refine import Refine
from slimformer.steps.step import Step

# steps that an argument, or a setting, of theirs adds to a recipe
APPENDED = ("vocabulary", "ends", "heal", "quantize", "head", "embedding")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result besides model and data: a name, and steps with their settings.

    >>> [type(step).__name__ for step in slimformer.load_recipe("balanced").steps]
    ['Cut', 'Refine']
    """

    name: str
    summary: str
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        named = tuple(step.model_copy(update={"name": self.name}) for step in self.steps)
        object.__setattr__(self, "steps", named)
        require_order(self.name, self.steps)

    @property
    def reads_data(self) -> bool:
        return any(step.reads_data for step in self.steps)

    @property
    def before_cut(self) -> tuple[Step, ...]:
        """The steps that are carried out before the cut: it cuts what they leave."""
        at = next((i for i, step in enumerate(self.steps) if isinstance(step, Cut)), 0)
        return self.steps[:at]

    @property
    def after_cut(self) -> tuple[Step, ...]:
        """The steps that are carried out with the cut."""
        at = next((i for i, step in enumerate(self.steps) if isinstance(step, Cut)), len(self.steps))
        return self.steps[at + 1 :]

    def to_json(self) -> dict[str, Any]:
        """As it is written in a file."""
        steps = [{NAMES[type(step)]: step.model_dump(mode="json")} for step in self.steps]
        return {"name": self.name, "summary": self.summary, "steps": steps}


RECIPE = instance("the name of a recipe, a path to a .yaml file, or a Recipe", str, Path, Recipe)


def load_recipe(recipe: str | Path | Recipe) -> Recipe:
    """A recipe by name or path, checked; one that is loaded already stays as it is.

    >>> slimformer.load_recipe("lossless").reads_data
    False
    """
    if isinstance(recipe, Recipe):
        return recipe
    name = str(recipe)
    data = fields_of(name)
    return Recipe(data["name"], data["summary"], tuple(_step(name, entry) for entry in data["steps"]))


def recipe_of(name: str, summary: str, *steps: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """A recipe made on the spot, each step as in a file: `{"quantize": {"bits": 8}}`."""
    return Recipe(name, summary, tuple(_step(name, dict(step)) for step in steps))


def _step(recipe: str, entry: Any) -> Step:
    """One step from `{cut: {macs: 0.5}}`, or from its name alone."""
    item = {entry: None} if isinstance(entry, str) else entry
    if not isinstance(item, dict) or len(item) != 1:
        raise UnknownRecipe(f"the recipe {recipe!r}: {entry!r} is no step; write `- cut: {{macs: 0.5}}`")
    ((name, settings),) = item.items()
    if name not in STEPS:
        raise UnknownRecipe(f"the recipe {recipe!r}: there is no step {name!r}; choose from {', '.join(STEPS)}")
    if settings is not None and (not isinstance(settings, dict) or "name" in settings):
        raise UnknownRecipe(f"the recipe {recipe!r}: {name} needs settings by name; see `slimformer steps`")
    return _validated(recipe, name, settings or {})


def _validated(recipe: str, name: str, settings: Mapping[str, Any]) -> Step:
    try:
        return STEPS[name].model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([name, *(str(part) for part in first["loc"])])
        known = ", ".join(field for field in STEPS[name].model_fields if field != "name")
        wrong = "there is no such setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise UnknownRecipe(f"the recipe {recipe!r}: {where}: {wrong}; settings of {name}: {known}") from None


def with_arguments(recipe: Recipe, given: Mapping[str, Any]) -> Recipe:
    """The recipe with what arguments of `compress` are short for: `macs=0.5` is the budget of its cut, `bits=8` adds
    `quantize`, `vocab=16000` adds `vocabulary`, `refine=False` takes `refine` out. What none of its steps takes is
    refused here."""
    given = {name: value for name, value in given.items() if value is not None}
    vocab = given.get("vocab")
    if vocab is not None:  # below 1 a share of the text, else tokens; what a file says gives way
        given |= {"vocab": None, "vocab_cover": vocab} if isinstance(vocab, float) else {"vocab_cover": None}
    recipe = _with_refine(recipe, given.pop("refine", None))
    for name in ("group", "tables"):
        if name in given and not given.keys() & {"bits", "size"} and not _has(recipe, "quantize"):
            raise BudgetOutOfReach(
                f"{option(name)} says how bits are stored; give {option('bits', 8)}, {option('bits', 4)} or a "
                f"{option('size')} with it"
            )
    asked = [name for name in BUDGETS if name in given]
    changes: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        step = _taker(recipe, name, given)
        field = STEPS[step].flags[name]
        if name in BUDGETS:  # another budget in the file gives way
            others = {other: None for other in BUDGETS if other in STEPS[step].model_fields and other not in asked}
            changes[step] = {**others, **changes.get(step, {})}
        changes.setdefault(step, {})[field] = value
    return with_settings(recipe, {f"{step}.{key}": v for step, new in changes.items() for key, v in new.items()})


def _has(recipe: Recipe, name: str) -> bool:
    return any(type(step) is STEPS[name] for step in recipe.steps)


def _taker(recipe: Recipe, argument: str, given: Mapping[str, Any]) -> str:
    """The step that takes an argument: one of the recipe, or one that the argument adds to it."""
    present = [NAMES[type(step)] for step in recipe.steps]
    added = [name for name in APPENDED if STEPS[name].flags.keys() & given.keys() and name not in present]
    if argument in ("group", "tables"):  # of the bits that are asked for; else of those that a size leads to
        present = [*added, *present[::-1]] if "bits" in given else present[::-1]
    for name in (*present, *(name for name in added if "bits" in given or name != "quantize")):
        if argument in STEPS[name].flags:
            return name
    if argument in BUDGETS:
        takes = [name for name in BUDGETS if any(name in STEPS[step].flags for step in present)]
        why = next(step.why_no_budget for step in recipe.steps)
        fractions = set(takes) & set(MEASURES)
        instead = f"give {either(*takes)}" if fractions else f"{why}, so leave it out, or use another recipe"
        raise BudgetOutOfReach(f"the recipe {recipe.name!r} takes no {option(argument)}; {instead}")
    takers = " or ".join(name for name, step in STEPS.items() if argument in step.flags)
    raise UnknownMethod(
        f"{option(argument)} is for the step {takers}, and the recipe {recipe.name!r} has none (its steps: "
        f"{', '.join(present)}); leave it out, or use another recipe"
    )


def _with_refine(recipe: Recipe, wanted: bool | None) -> Recipe:
    if wanted is None or wanted == _has(recipe, "refine"):
        return recipe
    if not wanted:
        return replace(recipe, steps=tuple(step for step in recipe.steps if not isinstance(step, Refine)))
    if not _has(recipe, "cut"):
        raise UnknownMethod(f"the recipe {recipe.name!r} has no refinement: there is no cut in it to correct")
    return replace(recipe, steps=_in_place([*recipe.steps, Refine()]))


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with some settings changed, by `step.key`; a step of `APPENDED` that is not there is added."""
    steps = {NAMES[type(step)]: step for step in recipe.steps}
    changes: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        step, dot, key = name.partition(".")
        if not dot or step not in STEPS or (step not in steps and step not in APPENDED):
            raise UnknownRecipe(
                f"{name!r} is no setting of the recipe {recipe.name!r}; its steps are {', '.join(steps)}: give "
                f"{next(iter(steps))}.KEY=VALUE"
            )
        changes.setdefault(step, {})[key] = value
    for step, new in changes.items():
        old = steps[step].model_dump(exclude={"name"}) if step in steps else {}
        steps[step] = _validated(recipe.name, step, {**old, **new})
    return replace(recipe, steps=_in_place(list(steps.values())))


def _in_place(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.place))


def cut_settings(recipe: str | Path | Recipe) -> Cut:
    """The settings of the cut in a recipe; refused where it has none, because then statistics are of no use."""
    chosen = load_recipe(recipe)
    cut = next((step for step in chosen.steps if isinstance(step, Cut)), None)
    if cut is None:
        steps = ", ".join(NAMES[type(step)] for step in chosen.steps)
        raise UnknownMethod(
            f"the recipe {chosen.name!r} cuts no widths (its steps: {steps}), so statistics are of no use to it; "
            "use `slimformer compress`"
        )
    return cut

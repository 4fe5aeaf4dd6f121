"""What can be done to a model, one step in one file; `STEPS` names them all."""

from itertools import pairwise

from slimformer.errors import UnknownMethod, UnknownRecipe
from slimformer.models import Architecture
from slimformer.steps.cut import Cut
from slimformer.steps.depth import Depth
from slimformer.steps.embedding import Embedding
from slimformer.steps.ends import Ends
from slimformer.steps.experts import Experts
from slimformer.steps.head import Head
from slimformer.steps.heal import Heal
from slimformer.steps.long_context import LongContext
from slimformer.steps.lossless import Lossless
from slimformer.steps.quantize import Quantize
from slimformer.steps.refine import Refine
from slimformer.steps.replace import Replace
from slimformer.steps.sparsify import Sparsify
from slimformer.steps.step import Step
from slimformer.steps.vocabulary import Vocabulary

STEPS: dict[str, type[Step]] = {
    "vocabulary": Vocabulary,
    "experts": Experts,
    "ends": Ends,
    "lossless": Lossless,
    "depth": Depth,
    "long_context": LongContext,
    "replace": Replace,
    "cut": Cut,
    "refine": Refine,
    "sparsify": Sparsify,
    "heal": Heal,
    "quantize": Quantize,
    "head": Head,
    "embedding": Embedding,
}
NAMES = {step: name for name, step in STEPS.items()}
# What cannot stand together in one recipe, and what to do instead. Everything else may, in the order of `Step.place`.
APART: dict[tuple[str, str], str] = {
    ("lossless", "heal"): "leave heal out: where no output changes, there is nothing to win back",
    ("long_context", "heal"): "leave heal out: the weights stay what they are",
    ("lossless", "head"): "leave head out: where no output changes, the old one is as good as it was",
    ("ends", "depth"): "save the model with fewer blocks first, and give it to a recipe with ends",
    ("depth", "head"): "save the model with fewer blocks first, and give it to `slimformer probe`",
    ("long_context", "head"): "leave head out: the weights stay, and so does the old one",
    ("head", "embedding"): "leave one of them out: a classifier gives no embedding",
    ("quantize", "head"): "fit the head first: compress with it, then run `slimformer quantize` on the result",
}

# What is done to an encoder and a decoder that looks at it. The others would need to know which of them they change.
FOR_PAIRS = ("cut", "refine")
FOR_SOUNDS = ("lossless", "depth", "cut", "refine", "sparsify", "quantize")
FOR_EXPERTS = ("vocabulary", "experts", "lossless", "cut", "refine")


def require_known_stacks(steps: tuple[Step, ...], architecture: Architecture) -> None:
    """Refuse steps for models of one stack where there is an encoder and a decoder, those that read text where there
    are sounds, and those for one feed-forward part in a block where there are experts."""
    unknown = [NAMES[type(step)] for step in steps if NAMES[type(step)] not in FOR_PAIRS]
    if unknown and architecture.family.reads_pairs:
        raise UnknownMethod(
            f"the step {unknown[0]} is for models of one stack, and {architecture.model_type} is an encoder and a "
            f"decoder; for these there are {' and '.join(FOR_PAIRS)} (recipes balanced, stat, uniform)"
        )
    if unknown and architecture.family.towers:
        raise UnknownMethod(
            f"the step {unknown[0]} is for models of one stack, and {architecture.model_type} is two towers; for these "
            f"there are {' and '.join(FOR_PAIRS)} (recipes balanced, stat, uniform)"
        )
    unknown = [NAMES[type(step)] for step in steps if NAMES[type(step)] not in FOR_SOUNDS]
    if unknown and architecture.family.sound:
        raise UnknownMethod(
            f"the step {unknown[0]} is for text and images, and {architecture.model_type} hears sounds; for these "
            f"there are {', '.join(FOR_SOUNDS)}"
        )
    unknown = [NAMES[type(step)] for step in steps if NAMES[type(step)] not in FOR_EXPERTS]
    if unknown and architecture.family.experts:
        raise UnknownMethod(
            f"the step {unknown[0]} is for models with one feed-forward part in a block, and {architecture.model_type} "
            f"has experts; for these there are {', '.join(FOR_EXPERTS)}"
        )


def require_order(recipe: str, steps: tuple[Step, ...]) -> None:
    """Refuse steps that cannot follow each other: the one place that says so."""
    names = [NAMES[type(step)] for step in steps]
    if not names:
        raise UnknownRecipe(f"the recipe {recipe!r} has no steps; see `slimformer steps` for those there are")
    for first, second in APART:
        if first in names and second in names:
            raise UnknownRecipe(f"the recipe {recipe!r} has both {first} and {second}; {APART[first, second]}")
    shapes = [name for name in names if STEPS[name].place == 0]
    if len(shapes) > 1:
        raise UnknownRecipe(
            f"the recipe {recipe!r} has {' and '.join(shapes)}; one of them can be done to a model at a time: save the "
            "result of the first, and give it to the second"
        )
    if "refine" in names and "cut" not in names:
        raise UnknownRecipe(f"the recipe {recipe!r} has refine without cut, and there is nothing to correct")
    for before, after in pairwise(names):
        if STEPS[before].place >= STEPS[after].place:
            raise UnknownRecipe(f"the recipe {recipe!r} has {after} after {before}; put {after} first, and each once")

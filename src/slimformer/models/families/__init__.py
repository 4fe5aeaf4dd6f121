"""Families of models, one small file each, by the `model_type` of Hugging Face.

Architectures that live in the lab add theirs when they register (`lab.architectures`).
"""

from dataclasses import replace
from typing import Any

from slimformer.errors import UnknownArchitecture
from slimformer.models.families.bert import BERT
from slimformer.models.families.distilbert import DISTILBERT
from slimformer.models.families.gpt2 import GPT2
from slimformer.models.families.llama import LLAMA
from slimformer.models.families.opt import OPT
from slimformer.models.families.vit import VIT
from slimformer.models.family import Family

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": DISTILBERT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "opt": OPT,
    "vit": VIT,
}


def family_of(kind: Any) -> Family:
    """The family of a config, or of a `model_type` of Hugging Face."""
    model_type = kind if isinstance(kind, str) else kind.model_type
    if model_type not in FAMILIES:
        raise UnknownArchitecture(
            f"models of type {model_type!r} are not supported; supported: {', '.join(sorted(FAMILIES))} "
            "(docs/adding-a-family.md says how to add one)"
        )
    family = FAMILIES[model_type]
    if isinstance(kind, str) or not any(isinstance(stack.image, str) for stack in family.stacks):
        return family
    stacks = tuple(
        replace(stack, image=bool(getattr(kind, stack.image))) if isinstance(stack.image, str) else stack
        for stack in family.stacks
    )
    return replace(family, stacks=stacks)

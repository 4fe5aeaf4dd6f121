"""Families of models, one small file each, and the way from a folder or a hub id to a model and its description."""

from typing import Any

from slimformer.errors import UnknownArchitecture
from slimformer.models.architecture import Architecture as Architecture
from slimformer.models.architecture import Family as Family
from slimformer.models.architecture import Site as Site
from slimformer.models.architecture import describe as describe
from slimformer.models.bert import BERT
from slimformer.models.distilbert import DISTILBERT
from slimformer.models.gpt2 import GPT2
from slimformer.models.llama import LLAMA
from slimformer.models.minimal import MINIMAL, minimal_family
from slimformer.models.opt import OPT
from slimformer.models.vit import VIT

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": DISTILBERT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "minimal": MINIMAL,
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
    if model_type == "minimal" and not isinstance(kind, str):
        return minimal_family(kind)
    return FAMILIES[model_type]

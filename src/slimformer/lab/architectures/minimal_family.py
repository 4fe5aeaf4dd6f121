"""Minimal transformers as a family: pre- or post-norm encoders of images or text.

Heads and ranks can be cut where queries, keys, values and outputs have a matrix each (qk=full, vo=full); elsewhere the
attention says why not, and counts as it is.
"""

from dataclasses import replace
from typing import Any

from slimformer.models.families import FAMILIES
from slimformer.models.family import Derived, Family


def minimal_family(config: Any) -> Family:
    """The family as one config has it: of images or of text, with a norm at the end or without."""
    return replace(MINIMAL, image=config.reads_images, final_norm="norm" if config.do_layer_norm_before else None)


MINIMAL = Family(
    name="minimal",
    model_types=("minimal",),
    blocks="layers",
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    attn_out="attention.o_proj",
    ffn_in=("mlp.fc1",),
    ffn_out="mlp.fc2",
    head_dim="attention.head_dim",
    heads_key="num_attention_heads",
    ffn_key="intermediate_size",
    ffn_norm="norm_mlp",
    norms_after=("norm_attention", "norm_mlp"),
    mlp="mlp",
    final_norm="norm",
    derived=(Derived("attention.num_attention_heads", "heads"),),
    image=True,
    plain_heads=True,
    of_config=minimal_family,
)


def register() -> None:
    """Let `describe` know minimal models. Doing it twice changes nothing."""
    FAMILIES["minimal"] = MINIMAL

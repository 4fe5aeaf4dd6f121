"""Minimal transformers as a family: pre- or post-norm encoders of images or text.

Heads and ranks can be cut where queries, keys, values and outputs have a matrix each (qk=full, vo=full); elsewhere the
attention says why not, and counts as it is.
"""

from slimformer.models.families import FAMILIES
from slimformer.models.family import AttentionPart, Derived, Family, FeedForwardPart, StackLayout

MINIMAL = Family(
    name="minimal",
    model_types=("minimal",),
    stacks=(
        StackLayout(
            blocks="layers",
            final_norm="norm",
            image="reads_images",
            parts=(
                AttentionPart(
                    query="attention.q_proj",
                    key="attention.k_proj",
                    value="attention.v_proj",
                    out="attention.o_proj",
                    head_dim="attention.head_dim",
                    heads_key="num_attention_heads",
                    norm="norm_attention",
                    norm_after="norm_attention",
                    derived=(Derived("attention.num_attention_heads", "heads"),),
                    plain_heads=True,
                ),
                FeedForwardPart(
                    writers=("mlp.fc1",),
                    out="mlp.fc2",
                    neurons_key="intermediate_size",
                    norm="norm_mlp",
                    norm_after="norm_mlp",
                    mlp="mlp",
                ),
            ),
        ),
    ),
)


def register() -> None:
    """Let `describe` know minimal models. Doing it twice changes nothing."""
    FAMILIES["minimal"] = MINIMAL

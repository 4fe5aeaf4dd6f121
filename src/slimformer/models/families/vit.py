"""ViT: pre-norm image encoder."""

from slimformer.models.family import AttentionPart, Derived, Family, FeedForwardPart, StackLayout

VIT = Family(
    name="vit",
    model_types=("vit",),
    stacks=(
        StackLayout(
            blocks="layers",
            final_norm="layernorm",
            image=True,
            parts=(
                AttentionPart(
                    query="attention.q_proj",
                    key="attention.k_proj",
                    value="attention.v_proj",
                    out="attention.o_proj",
                    head_dim="attention.head_dim",
                    heads_key="num_attention_heads",
                    norm="layernorm_before",
                    derived=(Derived("attention.num_attention_heads", "heads"),),
                    plain_heads=True,
                ),
                FeedForwardPart(
                    writers=("mlp.fc1",),
                    out="mlp.fc2",
                    neurons_key="intermediate_size",
                    norm="layernorm_after",
                    mlp="mlp",
                ),
            ),
        ),
    ),
)

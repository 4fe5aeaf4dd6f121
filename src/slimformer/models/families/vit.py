"""ViT: pre-norm image encoder."""

from slimformer.models.family import Derived, Family

VIT = Family(
    name="vit",
    model_types=("vit",),
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
    ffn_norm="layernorm_after",
    mlp="mlp",
    final_norm="layernorm",
    derived=(Derived("attention.num_attention_heads", "heads"),),
    image=True,
    plain_heads=True,
)

"""GPT-2: pre-norm decoder; q, k and v are one fused Conv1D that is split at `split_size`."""

from slimformer.models.family import Derived, Family

GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    blocks="h",
    query="attn.c_attn",
    key="attn.c_attn",
    value="attn.c_attn",
    attn_out="attn.c_proj",
    ffn_in=("mlp.c_fc",),
    ffn_out="mlp.c_proj",
    head_dim="attn.head_dim",
    heads_key="n_head",
    ffn_key="n_inner",
    ffn_norm="ln_2",
    mlp="mlp",
    final_norm="ln_f",
    derived=(
        Derived("attn.num_heads", "heads"),
        Derived("attn.split_size", "heads", factor="head_dim"),
    ),
    causal=True,
)

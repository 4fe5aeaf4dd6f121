"""GPT-2: pre-norm decoder; q, k and v are one fused Conv1D that is split at `split_size`."""

from slimformer.models.family import AttentionPart, Derived, Family, FeedForwardPart, StackLayout

GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    stacks=(
        StackLayout(
            blocks="h",
            final_norm="ln_f",
            causal=True,
            parts=(
                AttentionPart(
                    query="attn.c_attn",
                    key="attn.c_attn",
                    value="attn.c_attn",
                    out="attn.c_proj",
                    head_dim="attn.head_dim",
                    heads_key="n_head",
                    norm="ln_1",
                    derived=(
                        Derived("attn.num_heads", "heads"),
                        Derived("attn.split_size", "heads", factor="head_dim"),
                    ),
                ),
                FeedForwardPart(
                    writers=("mlp.c_fc",),
                    out="mlp.c_proj",
                    neurons_key="n_inner",
                    norm="ln_2",
                    may_be_empty=False,
                    mlp="mlp",
                ),
            ),
        ),
    ),
)

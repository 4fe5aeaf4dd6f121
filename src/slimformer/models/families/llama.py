"""LLaMA, Mistral, Qwen2 and Qwen3: pre-norm decoders, rotary positions, grouped queries, gated MLP."""

from slimformer.models.family import AttentionPart, Derived, Family, FeedForwardPart, StackLayout

LLAMA = Family(
    name="llama",
    model_types=("llama", "mistral", "qwen2", "qwen3"),
    stacks=(
        StackLayout(
            blocks="layers",
            final_norm="norm",
            causal=True,
            parts=(
                AttentionPart(
                    query="self_attn.q_proj",
                    key="self_attn.k_proj",
                    value="self_attn.v_proj",
                    out="self_attn.o_proj",
                    head_dim="self_attn.head_dim",
                    heads_key="num_attention_heads",
                    kv_key="num_key_value_heads",
                    norm="input_layernorm",
                    derived=(Derived("self_attn.num_key_value_groups", "heads", over="kv_heads"),),
                    rotary=True,
                    plain_heads=True,
                    divides_hidden=("llama",),
                ),
                FeedForwardPart(
                    writers=("mlp.gate_proj", "mlp.up_proj"),
                    out="mlp.down_proj",
                    neurons_key="intermediate_size",
                    norm="post_attention_layernorm",
                    mlp="mlp",
                ),
            ),
        ),
    ),
)

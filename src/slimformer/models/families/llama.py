"""LLaMA, Mistral, Qwen2 and Qwen3: pre-norm decoders, rotary positions, grouped queries, gated MLP."""

from slimformer.models.family import Derived, Family

LLAMA = Family(
    name="llama",
    model_types=("llama", "mistral", "qwen2", "qwen3"),
    blocks="layers",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attn_out="self_attn.o_proj",
    ffn_in=("mlp.gate_proj", "mlp.up_proj"),
    ffn_out="mlp.down_proj",
    head_dim="self_attn.head_dim",
    heads_key="num_attention_heads",
    kv_key="num_key_value_heads",
    ffn_key="intermediate_size",
    ffn_norm="post_attention_layernorm",
    mlp="mlp",
    final_norm="norm",
    derived=(Derived("self_attn.num_key_value_groups", "heads", over="kv_heads"),),
    rotary=True,
    causal=True,
    plain_heads=True,
    divides_hidden=("llama",),
)

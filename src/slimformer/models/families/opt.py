"""OPT: pre-norm decoder with biases and ReLU; its attention views by head count, so the count is kept true."""

from slimformer.models.family import Derived, Family

OPT = Family(
    name="opt",
    model_types=("opt",),
    blocks="decoder.layers",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attn_out="self_attn.out_proj",
    ffn_in=("fc1",),
    ffn_out="fc2",
    head_dim="self_attn.head_dim",
    heads_key="num_attention_heads",
    ffn_key="ffn_dim",
    ffn_norm="final_layer_norm",
    norms_after=("self_attn_layer_norm", "final_layer_norm"),
    mlp="fc2",
    mlp_inert=("fc1", "activation_fn"),
    final_norm="decoder.final_layer_norm",
    derived=(Derived("self_attn.num_heads", "heads"),),
    causal=True,
)

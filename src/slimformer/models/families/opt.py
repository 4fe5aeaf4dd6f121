"""OPT: decoder with biases and ReLU; its attention views by head count, so the count is kept true.

Norms come before or after what they belong to: `do_layer_norm_before` says it.
"""

from slimformer.models.family import AttentionPart, Derived, Family, FeedForwardPart, StackLayout

OPT = Family(
    name="opt",
    model_types=("opt",),
    stacks=(
        StackLayout(
            blocks="decoder.layers",
            final_norm="decoder.final_layer_norm",
            causal=True,
            parts=(
                AttentionPart(
                    query="self_attn.q_proj",
                    key="self_attn.k_proj",
                    value="self_attn.v_proj",
                    out="self_attn.out_proj",
                    head_dim="self_attn.head_dim",
                    heads_key="num_attention_heads",
                    norm="self_attn_layer_norm",
                    norm_after="self_attn_layer_norm",
                    derived=(Derived("self_attn.num_heads", "heads"),),
                ),
                FeedForwardPart(
                    writers=("fc1",),
                    out="fc2",
                    neurons_key="ffn_dim",
                    norm="final_layer_norm",
                    norm_after="final_layer_norm",
                    mlp="fc2",
                    mlp_inert=("fc1", "activation_fn"),
                ),
            ),
        ),
    ),
)

"""DistilBERT: BERT with half the blocks and names of its own."""

from slimformer.models.family import AttentionPart, Derived, Family, FeedForwardPart, StackLayout

DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    stacks=(
        StackLayout(
            blocks="transformer.layer",
            parts=(
                AttentionPart(
                    query="attention.q_lin",
                    key="attention.k_lin",
                    value="attention.v_lin",
                    out="attention.out_lin",
                    head_dim="attention.attention_head_size",
                    heads_key="n_heads",
                    norm_after="sa_layer_norm",
                    derived=(Derived("attention.n_heads", "heads"),),
                ),
                FeedForwardPart(
                    writers=("ffn.lin1",),
                    out="ffn.lin2",
                    neurons_key="hidden_dim",
                    norm_after="output_layer_norm",
                    mlp="ffn",
                ),
            ),
        ),
    ),
)

"""DistilBERT: BERT with half the blocks and names of its own."""

from slimformer.models.family import Derived, Family

DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    blocks="transformer.layer",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attn_out="attention.out_lin",
    ffn_in=("ffn.lin1",),
    ffn_out="ffn.lin2",
    head_dim="attention.attention_head_size",
    heads_key="n_heads",
    ffn_key="hidden_dim",
    norms_after=("sa_layer_norm", "output_layer_norm"),
    mlp="ffn",
    derived=(Derived("attention.n_heads", "heads"),),
)

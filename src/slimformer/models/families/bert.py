"""BERT and RoBERTa: post-norm encoders with biases everywhere."""

from slimformer.models.family import Derived, Family

BERT = Family(
    name="bert",
    model_types=("bert", "roberta"),
    blocks="encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attn_out="attention.output.dense",
    ffn_in=("intermediate.dense",),
    ffn_out="output.dense",
    head_dim="attention.self.attention_head_size",
    heads_key="num_attention_heads",
    ffn_key="intermediate_size",
    norms_after=("attention.output.LayerNorm", "output.LayerNorm"),
    mlp="output.dense",
    mlp_inert=("intermediate",),
    derived=(
        Derived("attention.self.num_attention_heads", "heads"),
        Derived("attention.self.all_head_size", "heads", factor="head_dim"),
    ),
)

"""BERT and RoBERTa: post-norm encoders with biases everywhere."""

from slimformer.models.family import AttentionPart, Derived, Family, FeedForwardPart, StackLayout

BERT = Family(
    name="bert",
    model_types=("bert", "roberta"),
    stacks=(
        StackLayout(
            blocks="encoder.layer",
            parts=(
                AttentionPart(
                    query="attention.self.query",
                    key="attention.self.key",
                    value="attention.self.value",
                    out="attention.output.dense",
                    head_dim="attention.self.attention_head_size",
                    heads_key="num_attention_heads",
                    norm_after="attention.output.LayerNorm",
                    derived=(
                        Derived("attention.self.num_attention_heads", "heads"),
                        Derived("attention.self.all_head_size", "heads", factor="head_dim"),
                    ),
                ),
                FeedForwardPart(
                    writers=("intermediate.dense",),
                    out="output.dense",
                    neurons_key="intermediate_size",
                    norm_after="output.LayerNorm",
                    mlp="output.dense",
                    mlp_inert=("intermediate",),
                ),
            ),
        ),
    ),
)

"""The configuration of Linformer models, and of the standard transformer they are compared with."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from slimformer.errors import ProjectionDoesNotFit
from slimformer.lab.architectures.linformer_projections import KINDS, SHARING, TRAINED

K = int | list[int] | list[list[int]]


class LinformerConfig(PreTrainedConfig):
    """Sizes under their usual names, and how the sequence is compressed.

    projection      linear, mean, max, conv, cluster; svd, the best rank k of each attention matrix, a bound that
                    costs more than it saves; exact is the standard transformer with the same everything else
    sharing         none (2 L H matrices), headwise (2 L), key-value (L), layerwise (1); each is positions × k
    k               rows: one number, one for each layer, or a list for each layer with one for each head
    row_stochastic  rows are means of valid tokens and count for as much as they hold
    block_size      tokens of a block of the causal mode; none: about k
    mlp_ratio       width of the feed-forward part over that of the stream; 0: no such part
    norm            "pre" or "post"; pooling, before a classifier: "mean" over real tokens or "first"
    """

    model_type = "linformer"

    vocab_size: int = 30522
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    mlp_ratio: float = 4.0
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    norm: str = "pre"
    pooling: str = "mean"
    projection: str = "linear"
    sharing: str = "headwise"
    k: Any = 128
    row_stochastic: bool = False
    second_order: bool = False
    cluster_sweeps: int = 3
    is_causal: bool = False
    block_size: int | None = None
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        _one_of("projection", self.projection, KINDS)
        _one_of("sharing", self.sharing, SHARING)
        _one_of("norm", self.norm, ("pre", "post"))
        _one_of("pooling", self.pooling, ("mean", "first"))
        if self.projection == "svd" and self.is_causal:
            raise ProjectionDoesNotFit("projection 'svd' is of a whole text, its end included; no decoder has it")
        if self.use_cache:
            raise ProjectionDoesNotFit("use_cache: compressed rows change as text grows; set it to false")
        if self.block_size is not None and self.block_size < 1:
            raise ProjectionDoesNotFit(f"block_size is {self.block_size}; give a number of tokens, or none")
        sizes = [self.layer_k(layer) for layer in range(self.num_hidden_layers)]
        if self.one_projection and len({k for each in sizes for k in each}) > 1:
            raise ProjectionDoesNotFit(
                f"sharing 'layerwise' is one matrix for all layers, which has one k, not {self.k}"
            )

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward part."""
        return round(self.mlp_ratio * self.hidden_size)

    @property
    def one_projection(self) -> bool:
        """Does one trained projection serve the whole model?"""
        return self.sharing == "layerwise" and self.projection in TRAINED

    def layer_k(self, layer: int) -> list[int]:
        """k of every head of a layer. No layer asks for more rows than there are positions."""
        given: K = self.k
        if isinstance(given, bool) or not isinstance(given, int | list | tuple):
            raise ProjectionDoesNotFit(f"k is {given!r}; give a number of rows, or a list")
        if not isinstance(given, int):
            if len(given) != self.num_hidden_layers:
                raise ProjectionDoesNotFit(f"there are {len(given)} values of k for {self.num_hidden_layers} layers")
            given = given[layer]  # type: ignore[assignment]
        each = [given] * self.num_attention_heads if isinstance(given, int) else list(given)
        if len(each) != self.num_attention_heads:
            raise ProjectionDoesNotFit(
                f"layer {layer} has {len(each)} values of k for {self.num_attention_heads} heads"
            )
        return [min(int(k), self.max_position_embeddings) for k in each]  # type: ignore[call-overload]


def _one_of(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ProjectionDoesNotFit(f"there is no {field} {value!r}; choose from {', '.join(known)}")

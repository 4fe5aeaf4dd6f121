"""Linformer encoders and their heads as Hugging Face models: same blocks, same positions, another attention.

Pads may stand anywhere in the input. Real tokens are moved to the front before the first block, and outputs back
to where they were, so that a token meets the same position and the same column of E whichever side is padded.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from slimformer.errors import ProjectionDoesNotFit, SequenceTooLong
from slimformer.lab.architectures.linformer_attention import LinformerAttention, compression_of
from slimformer.lab.architectures.linformer_config import LinformerConfig
from slimformer.lab.architectures.linformer_projections import PROJECTIONS, make_projection


class LinformerBlock(GradientCheckpointingLayer):
    """Attention and feed-forward, norms before (x + f(norm x)) or after (norm(x + f x))."""

    def __init__(self, config: LinformerConfig, layer: int) -> None:
        super().__init__()
        width, hidden = config.hidden_size, config.intermediate_size
        self.before = config.norm == "pre"
        self.attention = LinformerAttention(config, layer)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.mlp = None
        if hidden:
            self.mlp = nn.Sequential(nn.Linear(width, hidden), ACT2FN[config.hidden_act], nn.Linear(hidden, width))
            self.mlp_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, mask: Tensor | None = None, shared: nn.Module | None = None) -> Tensor:
        if self.before:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask, shared))
            return x if self.mlp is None else x + self.dropout(self.mlp(self.mlp_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, mask, shared)))
        return x if self.mlp is None else self.mlp_norm(x + self.dropout(self.mlp(x)))


class LinformerPreTrainedModel(PreTrainedModel):
    """What all Linformer models share."""

    config_class = LinformerConfig
    config: LinformerConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LinformerBlock"]  # noqa: RUF012  (the name and type transformers asks for)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, tuple(PROJECTIONS.values())):
            weights = list(module.parameters(recurse=False))
            if not any(getattr(weight, "_is_hf_initialized", False) for weight in weights):
                module.reset_parameters()  # type: ignore[operator]

    def _encoded(self, ids: Tensor | None, mask: Tensor | None, embeds: Tensor | None, kwargs: dict[str, Any]) -> Any:
        """The encoder's output, as an output whatever the config says of tuples."""
        options = {name: kwargs.pop(name, None) for name in ("output_hidden_states", "output_attentions")}
        encoder: Any = self.encoder
        return encoder(ids, mask, embeds, return_dict=True, **options)


class LinformerModel(LinformerPreTrainedModel):
    """The encoder: tokens and learned positions in, hidden states out. Causal if the config says `is_causal`."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.blocks = nn.ModuleList(LinformerBlock(config, layer) for layer in range(config.num_hidden_layers))
        self.projection = (
            make_projection(compression_of(config, config.layer_k(0)[0], config.num_attention_heads))
            if config.one_projection
            else None
        )
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.tokens = value  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """`attention_mask` is b × n, true for real tokens. Hidden states of pads mean nothing."""
        if kwargs.get("output_attentions") or self.config.output_attentions:
            raise ProjectionDoesNotFit("output_attentions: compressed rows have no weights of tokens; set it to false")
        if attention_mask is not None and attention_mask.ndim != 2:
            raise ProjectionDoesNotFit(f"attention_mask has {attention_mask.ndim} axes; give batch × length")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        x = self.tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if x.shape[1] > self.config.max_position_embeddings:
            known = self.config.max_position_embeddings
            raise SequenceTooLong(f"the input has {x.shape[1]} tokens, the model positions for {known}")
        mask, order = _real_first(attention_mask)
        x = x if order is None else _taken(x, order)
        x = x + self.positions.weight[: x.shape[1]]
        x = self.dropout(x if self.config.norm == "pre" else self.norm(x))
        back = None if order is None else order.argsort(dim=1)
        states: list[Any] = []
        seen = None if self.config.is_causal else mask  # pads come last: no real token sees them
        for block in self.blocks:
            if output_hidden_states:
                states.append(x if back is None else _taken(x, back))
            x = block(x, seen, self.projection)
        x = self.norm(x) if self.config.norm == "pre" else x
        last: Any = x if back is None else _taken(x, back)
        return BaseModelOutput(last_hidden_state=last, hidden_states=(*states, last) if output_hidden_states else None)


class LinformerForMaskedLM(LinformerPreTrainedModel):
    """Tokens that were masked are named, by the transposed embedding."""

    _tied_weights_keys = {"lm_head.weight": "encoder.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        if config.is_causal:
            raise ProjectionDoesNotFit("a masked language model reads both sides; set is_causal to false")
        self.encoder = LinformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        out = self._encoded(input_ids, attention_mask, inputs_embeds, kwargs)
        logits = self.lm_head(out.last_hidden_state)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


class LinformerForSequenceClassification(LinformerPreTrainedModel):
    """A linear classifier on the mean of real tokens, or on the first one."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.num_labels = int(config.num_labels or 2)
        self.encoder = LinformerModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        out = self._encoded(input_ids, attention_mask, inputs_embeds, kwargs)
        logits = self.classifier(self.dropout(self._pooled(out.last_hidden_state, attention_mask)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)

    def _pooled(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return x.mean(1) if self.config.pooling == "mean" else x[:, 0]
        if self.config.pooling == "first":
            return x[torch.arange(len(x), device=x.device), mask.int().argmax(1)]
        real = mask.bool()[..., None]
        return x.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp_min(1).to(x.dtype)


class LinformerForCausalLM(LinformerPreTrainedModel, GenerationMixin):
    """The next token, by the transposed embedding. The encoder is causal whatever the config says.

    Generation reads the whole text for every token: rows of a compressed past are those of the text so far, and
    nothing is cached.
    """

    _tied_weights_keys = {"lm_head.weight": "encoder.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LinformerConfig) -> None:
        config = copy.deepcopy(config)  # the caller may still build an encoder from it
        config.is_causal = True
        super().__init__(config)
        self.encoder = LinformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """All tokens, at every step."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        use_cache: bool | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        if past_key_values is not None:
            raise ProjectionDoesNotFit("a Linformer has no cache of keys and values; give the whole text")
        out = self._encoded(input_ids, attention_mask, inputs_embeds, kwargs)
        positions = slice(-logits_to_keep or None, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(out.last_hidden_state[:, positions])
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


def _real_first(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The mask once real tokens stand first, and the order that brings them there; nothing where nothing is to do."""
    if mask is None or bool(mask.all()):
        return None, None
    mask = mask.bool()
    if not bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        return mask, None
    order = (~mask).long().argsort(dim=1, stable=True)
    return mask.gather(1, order), order


def _taken(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order[..., None].expand_as(x))


def register() -> None:
    """Let the Auto classes of transformers open and make Linformers. Doing it twice changes nothing."""
    AutoConfig.register(LinformerConfig.model_type, LinformerConfig, exist_ok=True)
    AutoModel.register(LinformerConfig, LinformerModel, exist_ok=True)
    AutoModelForMaskedLM.register(LinformerConfig, LinformerForMaskedLM, exist_ok=True)
    AutoModelForSequenceClassification.register(LinformerConfig, LinformerForSequenceClassification, exist_ok=True)
    AutoModelForCausalLM.register(LinformerConfig, LinformerForCausalLM, exist_ok=True)

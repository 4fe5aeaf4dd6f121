"""Minimal transformers as Hugging Face models: for images (patches) and for text, with a classifier on top.

config = AutoConfig.for_model("minimal", qk="symmetric", vo="none", mlp_ratio=0, num_labels=10)
model = AutoModelForImageClassification.from_config(config)          # after `import slimformer`
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, ImageClassifierOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from slimformer.lab.architectures.minimal_attention import MinimalAttention
from slimformer.lab.architectures.minimal_config import MinimalConfig, sides


class MinimalMLP(nn.Module):
    """Two maps and what stands between them; without neurons nothing, and no parameters."""

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        neurons = config.intermediate_size or 0
        self.act = ACT2FN[config.hidden_act]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            self.fc1 = nn.Linear(config.hidden_size, neurons, bias=neurons > 0)
            self.fc2 = nn.Linear(neurons, config.hidden_size, bias=neurons > 0)

    def forward(self, hidden_states: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(hidden_states)))
        return out


class MinimalBlock(GradientCheckpointingLayer):
    """Attention and, where there is one, an MLP, each added to the stream; norms before (pre) or after (post) it."""

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        self.pre, self.skip = config.do_layer_norm_before, config.attention_skip
        self.has_mlp = bool(config.intermediate_size)
        self.attention = MinimalAttention(config)
        self.norm_attention = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MinimalMLP(config)
        self.norm_mlp = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if self.has_mlp else nn.Identity()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        around = hidden_states if self.skip else 0
        if self.pre:
            written, _ = self.attention(self.norm_attention(hidden_states), attention_mask, **kwargs)
            hidden_states = around + self.dropout(written)
        else:
            written, _ = self.attention(hidden_states, attention_mask, **kwargs)
            hidden_states = self.norm_attention(around + self.dropout(written))
        if not self.has_mlp and self.training:  # nothing would be added; whoever listens does so in inference
            return hidden_states
        if self.pre:
            return hidden_states + self.dropout(self.mlp(self.norm_mlp(hidden_states)))
        out: Tensor = self.norm_mlp(hidden_states + self.dropout(self.mlp(hidden_states)))
        return out


class PatchEmbeddings(nn.Module):
    """Patches to vectors, with a position each; before them the class token where one is pooled from."""

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        patch = sides(config.patch_size)
        self.patches = nn.Conv2d(config.num_channels, config.hidden_size, patch, patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size)) if config.pool == "cls" else None
        self.position_embeddings = nn.Parameter(torch.empty(1, config.positions, config.hidden_size))

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values.to(self.patches.weight.dtype)).flatten(2).mT
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        if x.shape[1] != self.position_embeddings.shape[1]:
            raise ValueError(f"{x.shape[1]} positions, and the model has {self.position_embeddings.shape[1]}")
        return x + self.position_embeddings


class TokenEmbeddings(nn.Module):
    """Tokens to vectors, with positions that count real tokens only, so that padding on either side moves nothing."""

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        if attention_mask is None:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        else:
            positions = (attention_mask.long().cumsum(1) - 1).clamp_min(0)
        return self.word_embeddings(input_ids) + self.position_embeddings(positions)


class MinimalPreTrainedModel(PreTrainedModel):
    """What all minimal models have in common."""

    config: MinimalConfig
    config_class = MinimalConfig
    base_model_prefix = "minimal"
    supports_gradient_checkpointing = True
    _no_split_modules = ["MinimalBlock"]  # noqa: RUF012  as transformers declares them
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": MinimalBlock, "attentions": MinimalAttention}  # noqa: RUF012

    @classmethod
    def is_custom_code(cls) -> bool:
        """Custom code has its modules without parameters of their own passed over when weights are drawn."""
        return False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, MinimalAttention):
            if not hasattr(module, "ranks"):  # one that was cut by rank has nothing of its own to draw
                module.reset()
        elif isinstance(module, MinimalMLP):
            _reset_mlp(module, self.config.num_hidden_layers)
        elif isinstance(module, PatchEmbeddings):
            init.normal_(module.position_embeddings, std=std)
            if module.cls_token is not None:
                init.normal_(module.cls_token, std=std)
        elif isinstance(module, nn.Embedding | nn.Conv2d) or (isinstance(module, nn.Linear) and module.out_features):
            init.normal_(module.weight, std=std)
            if not isinstance(module, nn.Embedding) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


def _reset_mlp(module: MinimalMLP, layers: int) -> None:
    neurons, width = module.fc1.weight.shape
    if neurons:
        init.normal_(module.fc1.weight, std=width**-0.5)
        init.normal_(module.fc2.weight, std=(2 * layers * neurons) ** -0.5)
        init.zeros_(module.fc1.bias)
        init.zeros_(module.fc2.bias)


class MinimalModel(MinimalPreTrainedModel):
    """Embeddings and blocks. Pre-norm ends with a norm; post-norm starts with one, so that scores start at their scale
    in the first block, too."""

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__(config)
        width, eps, pre = config.hidden_size, config.layer_norm_eps, config.do_layer_norm_before
        self.main_input_name = "pixel_values" if config.reads_images else "input_ids"
        self.embeddings = PatchEmbeddings(config) if config.reads_images else TokenEmbeddings(config)
        self.norm_embeddings = None if pre else nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList([MinimalBlock(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(width, eps=eps) if pre else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        table: Any = self.embeddings
        return table.patches if self.config.reads_images else table.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        setattr(self.embeddings, "patches" if self.config.reads_images else "word_embeddings", value)

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        x = self.embeddings(pixel_values) if self.config.reads_images else self.embeddings(input_ids, attention_mask)
        x = self.dropout(x if self.norm_embeddings is None else self.norm_embeddings(x))
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=x, attention_mask=attention_mask)
        for layer in self.layers:
            x = layer(x, mask)
        return BaseModelOutput(last_hidden_state=x if self.norm is None else self.norm(x))


class MinimalForImageClassification(MinimalPreTrainedModel):
    """A linear classifier of what is pooled from the patches."""

    main_input_name = "pixel_values"
    input_modalities = "image"

    def __init__(self, config: MinimalConfig) -> None:
        if not config.reads_images:
            raise ValueError("a config with a vocab_size is one for text; leave it out for images")
        super().__init__(config)
        self.minimal = MinimalModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 0)
        self.post_init()

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> ImageClassifierOutput:
        out = self.minimal(pixel_values=pixel_values, **kwargs)
        logits = self.classifier(pooled(out.last_hidden_state, None, self.config.pool or "cls"))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )


class MinimalForSequenceClassification(MinimalPreTrainedModel):
    """A linear classifier of what is pooled from the real tokens."""

    main_input_name = "input_ids"

    def __init__(self, config: MinimalConfig) -> None:
        if config.reads_images:
            raise ValueError("a model of text needs a vocab_size in its config")
        super().__init__(config)
        self.minimal = MinimalModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 0)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        if attention_mask is None and self.config.pad_token_id is not None and input_ids is not None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        out = self.minimal(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        logits = self.classifier(pooled(out.last_hidden_state, attention_mask, self.config.pool or "mean"))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )


def pooled(x: Tensor, mask: Tensor | None, pool: str) -> Tensor:
    """The first real position, or the mean of all real ones: batch × width."""
    if mask is None:
        return x[:, 0] if pool == "cls" else x.mean(1)
    if pool == "cls":
        return x[torch.arange(x.shape[0], device=x.device), mask.long().argmax(1)]
    weight = mask.to(x.dtype)[..., None]
    return (x * weight).sum(1) / weight.sum(1).clamp_min(1)


def register() -> None:
    """Let the Auto classes of transformers know minimal models. Doing it twice changes nothing."""
    AutoConfig.register("minimal", MinimalConfig, exist_ok=True)
    AutoModel.register(MinimalConfig, MinimalModel, exist_ok=True)
    AutoModelForImageClassification.register(MinimalConfig, MinimalForImageClassification, exist_ok=True)
    AutoModelForSequenceClassification.register(MinimalConfig, MinimalForSequenceClassification, exist_ok=True)

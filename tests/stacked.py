"""Models that are more than one stack of two parts: BART, which the package knows, and `macaron`, whose blocks have a
feed-forward part on each side of their attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput

from families import VOCABULARY, _filled, tiny
from slimformer.models import Family
from slimformer.models.family import AttentionPart, Derived, FeedForwardPart, StackLayout

MACARON = Family(
    "macaron",
    ("macaron",),
    (
        StackLayout(
            "layers",
            (
                FeedForwardPart(("up.0",), "down.0", "first_size", name="first", norm="norms.0"),
                AttentionPart(
                    "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj", "attn.head_dim", "heads",
                    norm="norms.1", no_ranks="a product of its own", derived=(Derived("attn.num_heads", "heads"),),
                ),
                FeedForwardPart(("up.1",), "down.1", "second_size", name="second", norm="norms.2"),
            ),
            final_norm="norm",
        ),
    ),
)  # fmt: skip


class MacaronConfig(PreTrainedConfig):
    model_type = "macaron"

    def __init__(self, hidden_size: int = 32, heads: int = 4, first_size: int = 48, second_size: int = 24, **rest: Any):
        self.hidden_size, self.heads, self.num_hidden_layers = hidden_size, heads, 3
        self.first_size, self.second_size, self.vocab_size = first_size, second_size, VOCABULARY
        self.hidden_act = "gelu"
        super().__init__(**rest)


class MacaronAttention(nn.Module):
    def __init__(self, config: MacaronConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.heads, config.hidden_size // config.heads
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(config.hidden_size, config.hidden_size) for _ in range(4)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        maps = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (each(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in maps)
        seen = None if mask is None else mask[:, None, None, :]
        context = nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=self.scaling)
        return self.out_proj(context.transpose(1, 2).flatten(-2))


class MacaronBlock(nn.Module):
    def __init__(self, config: MacaronConfig) -> None:
        super().__init__()
        width, sizes = config.hidden_size, (config.first_size, config.second_size)
        self.up = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        self.down = nn.ModuleList(nn.Linear(size, width) for size in sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attn = MacaronAttention(config)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        x = hidden_states
        x = x + self.down[0](nn.functional.gelu(self.up[0](self.norms[0](x))))
        x = x + self.attn(self.norms[1](x), mask)
        return x + self.down[1](nn.functional.gelu(self.up[1](self.norms[2](x))))


class MacaronModel(PreTrainedModel):
    config_class = MacaronConfig
    base_model_prefix = "macaron"

    def __init__(self, config: MacaronConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(MacaronBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        x = self.embed(input_ids)
        mask = None if attention_mask is None else attention_mask.bool()
        for layer in self.layers:
            x = layer(x, mask=mask)
        return BaseModelOutput(last_hidden_state=self.norm(x))


AutoConfig.register("macaron", MacaronConfig, exist_ok=True)
AutoModel.register(MacaronConfig, MacaronModel, exist_ok=True)


def macaron() -> PreTrainedModel:
    return _filled(MacaronModel(MacaronConfig(pad_token_id=1)), 0).eval()


def bart() -> PreTrainedModel:
    return tiny("bart")


def last(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """What a model gives: scores, or last states."""
    with torch.no_grad():
        found = model(**inputs)
    return found.logits if "logits" in found else found.last_hidden_state

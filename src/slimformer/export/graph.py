"""What is exported of a model: named tensors in, named tensors out, and which of their sizes may change.

Text goes in as `input_ids` and `attention_mask` (and `token_type_ids` where the model tells segments apart), batch ×
sequence, both free up to the positions the model has. Images go in as `pixel_values` of one size, batch free. Out come
logits, or hidden states where there is no head, and the embedding of a sentence-transformers folder. Decoders have
no cache: every call reads the whole sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.gather import positions
from slimformer.checkpoint.sentence import kinds_of, sentence_modules
from slimformer.errors import SequenceTooLong
from slimformer.files.reading import read_json
from slimformer.messages.words import option
from slimformer.models import family_of

TEXT_OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state")
PER_TOKEN = ("start_logits", "end_logits", "last_hidden_state")
SHAPES = ((1, 1), (1, 7), (2, 12), (3, 16), (4, 33))  # batch × sequence, of what an export is tried on


@dataclass(frozen=True)
class Pooling:
    """How a sentence-transformers folder makes one vector of hidden states; `normalize` to length one."""

    kind: str  # mean, cls
    normalize: bool


class Graph(nn.Module):
    """A model whose inputs and outputs are tensors in a fixed order."""

    def __init__(self, model: PreTrainedModel, pooling: Pooling | None = None) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling
        self.uncached = {"use_cache": False} if family_of(model.config).causal else {}
        self.input_names = input_names(model)
        self.output_names = _output_names(model, pooling)

    def forward(
        self, first: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        given = (first, attention_mask, token_type_ids)
        result = self.model(**dict(zip(self.input_names, given, strict=False)), **self.uncached)
        out = tuple(result[name] for name in self.output_names if name != "sentence_embedding")
        if self.pooling is None or attention_mask is None:
            return out
        return (*out, pooled(result["last_hidden_state"], attention_mask, self.pooling))


def pooled(states: Tensor, mask: Tensor, how: Pooling) -> Tensor:
    """One vector for each sequence: the mean of its real positions, or its first position."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    vector = states[:, 0] if how.kind == "cls" else (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return nn.functional.normalize(vector, dim=-1) if how.normalize else vector


def pooling_of(folder: Path | None) -> Pooling | None:
    """What `modules.json` says, where it is a transformer, a mean or first-token pooling, and perhaps a norm."""
    try:
        assert folder is not None
        modules = sentence_modules(folder)
        kinds = kinds_of(modules)
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            return None
        config = read_json(folder / modules[1]["path"] / "config.json")
    except (AssertionError, OSError, ValueError, TypeError, KeyError):
        return None
    if not isinstance(config, dict):
        return None
    if isinstance(config.get("pooling_mode"), str):
        on = {config["pooling_mode"]}
    else:
        on = {name.removeprefix("pooling_mode_") for name, value in config.items() if value is True}
    kind = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
    modes = {kind.get(str(mode), str(mode)) for mode in on - {"include_prompt"}}
    return Pooling(modes.pop(), "Normalize" in kinds) if modes in ({"mean"}, {"cls"}) else None


def input_names(model: PreTrainedModel) -> tuple[str, ...]:
    """The tensors a call takes, in order."""
    family, config = family_of(model.config), model.config
    if family.image:
        return ("pixel_values",)
    segments = not family.causal and getattr(config, "type_vocab_size", 0) > 1
    return ("input_ids", "attention_mask", *(("token_type_ids",) if segments else ()))


@torch.no_grad()
def _output_names(model: PreTrainedModel, pooling: Pooling | None) -> tuple[str, ...]:
    out = model(**sample(model, 1, 4))
    names = tuple(name for name in TEXT_OUTPUTS if out.get(name) is not None)
    return (*names, "sentence_embedding") if pooling and "last_hidden_state" in names else names


def longest(model: PreTrainedModel) -> int | None:
    """Positions a model has; None for images."""
    return None if family_of(model.config).image else positions(model.config)


def sample(model: PreTrainedModel, batch: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Random tokens, every other row padded (decoders on the left, encoders on the right), or random images."""
    generator, config = torch.Generator().manual_seed(seed), model.config
    if family_of(config).image:
        size = config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return {"pixel_values": torch.randn(batch, config.num_channels, height, width, generator=generator)}
    ids = torch.randint(config.vocab_size, (batch, length), generator=generator)
    rows, steps = torch.arange(batch)[:, None], torch.arange(length)[None]
    missing = (rows % 2 == 0) * (length // 3)
    left = family_of(config).causal
    mask = (steps >= missing) if left else (steps < length - missing)
    given = {"input_ids": ids, "attention_mask": mask.long()}
    if "token_type_ids" in input_names(model):
        given["token_type_ids"] = (steps >= length // 2).long().expand(batch, length).contiguous()
    return given


def trial_shapes(model: PreTrainedModel, seq_len: int | None) -> list[tuple[int, int]]:
    """Batches and lengths an export is tried on: several of both, where both are free, and all the model reads."""
    limit = longest(model)
    if limit is None or seq_len:
        return [(batch, seq_len or 1) for batch in (1, 2, 5)]
    lengths = {min(length, limit) for _, length in SHAPES}
    return [shape for shape in SHAPES if shape[1] in lengths] + [(1, min(limit, 128))]


def free_sizes(model: PreTrainedModel, seq_len: int | None) -> list[dict[int, Any]]:
    """For every input: which of its axes may have any length, and up to which."""
    batch, limit = torch.export.Dim("batch"), longest(model)
    if limit is None:
        return [{0: batch}]
    if seq_len is not None:
        if seq_len > limit:
            raise SequenceTooLong(
                f"{option('seq_len', seq_len)}: the model has {limit} positions; give at most as many"
            )
        return [{0: batch} for _ in input_names(model)]
    sequence = torch.export.Dim("sequence", max=limit)
    return [{0: batch, 1: sequence} for _ in input_names(model)]


@torch.no_grad()
def outputs_of(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What torch gives, by name."""
    out = graph(*(inputs[name] for name in graph.input_names))
    return dict(zip(graph.output_names, out, strict=True))

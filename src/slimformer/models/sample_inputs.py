"""Inputs of no meaning, for models that read more than tokens or one image: to prove, verify and time them.

A model of an encoder and a decoder is given the start of a target beside its source.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.errors import UnknownArchitecture
from slimformer.models.families import family_of


def start_token(config: Any) -> int:
    """The token every target begins with; refused where the config says none."""
    start = getattr(config, "decoder_start_token_id", None)
    if start is None:
        start = getattr(config, "bos_token_id", None)
    if start is None:
        raise UnknownArchitecture(
            "config.json says no decoder_start_token_id, so nobody knows what a target begins with; add it"
        )
    return int(start)


def shifted(targets: Tensor, config: Any) -> Tensor:
    """What a decoder is given to predict each of these tokens: the start token, then all before it."""
    return torch.cat([torch.full_like(targets[:, :1], start_token(config)), targets[:, :-1]], 1)


def with_decoder_ids(
    model: PreTrainedModel, inputs: dict[str, Tensor], generator: torch.Generator, length: int
) -> dict[str, Tensor]:
    """These inputs, and random tokens for the decoder where the model has one that looks at an encoder, be its type
    known or not."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return inputs
    rows, words = len(next(iter(inputs.values()))), int(model.config.vocab_size)
    ids = torch.randint(min(5, words // 2), words, (rows, length), generator=generator)
    return {**inputs, "decoder_input_ids": shifted(ids, model.config)}


def require_one_stack(config: Any, what: str) -> None:
    """Refuse, in one line, an encoder and a decoder where `what` knows models of one stack."""
    if family_of(config).reads_pairs:
        raise UnknownArchitecture(
            f"models of type {config.model_type!r} are an encoder and a decoder, and {what} works on models of one "
            "stack"
        )

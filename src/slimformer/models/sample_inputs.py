"""Inputs of no meaning, for models that read other than tokens alone: to prove, verify and time them.

Waves of sound (wav2vec 2.0, HuBERT) go through convolutions before the blocks, so a position stands for many samples.
A model of an encoder and a decoder is given the start of a target beside its source.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.errors import UnknownArchitecture
from slimformer.models.families import family_of


def seen_or_heard(model: PreTrainedModel, rows: int, positions: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random pixels, waves of so many positions or features of sound, as the model names its main input; nothing where
    that is tokens."""
    name, config = model.main_input_name, model.config
    if name == "pixel_values":
        size = config.image_size
        shape = (getattr(config, "num_channels", 3), *(size if isinstance(size, list | tuple) else (size, size)))
    elif name == "input_values" and hasattr(config, "conv_stride"):
        shape = (samples_of(config, positions),)
    elif name == "input_features" and hasattr(config, "max_source_positions"):
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
    else:
        return {}
    return {name: torch.randn(rows, *shape, generator=generator)}


def samples_of(config: Any, positions: int) -> int:
    """The fewest samples of sound that become so many positions."""
    return heard_lengths(config, positions)[0]


def heard_lengths(config: Any, positions: int) -> list[int]:
    """What goes into the first convolution before the blocks, and what comes out of each, for so many positions in the
    first block."""
    if not hasattr(config, "conv_stride"):
        return [n * config.max_source_positions for n in (2, 2, 1)]
    lengths = [positions]
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        lengths.insert(0, (lengths[0] - 1) * stride + kernel)
    return lengths


def positions_of(config: Any, samples: int) -> int:
    """The positions that so many samples of sound become."""
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        samples = (samples - kernel) // stride + 1
    return max(0, samples)


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


def vocabulary_size(config: Any) -> int:
    """How many tokens a config says; of two towers that of the text."""
    return int(getattr(config, "text_config", config).vocab_size)


def with_others(
    model: PreTrainedModel, inputs: dict[str, Tensor], generator: torch.Generator, length: int
) -> dict[str, Tensor]:
    """These inputs, and what else the model reads, be its type known or not: random tokens for a decoder that looks at
    an encoder, random pixels for the other of two towers."""
    vision = getattr(model.config, "vision_config", None)
    if vision is not None and "input_ids" in inputs:
        shape = (vision.num_channels, vision.image_size, vision.image_size)
        return {**inputs, "pixel_values": torch.randn(len(inputs["input_ids"]), *shape, generator=generator)}
    if not getattr(model.config, "is_encoder_decoder", False):
        return inputs
    rows, words = len(next(iter(inputs.values()))), int(model.config.vocab_size)
    ids = torch.randint(min(5, words // 2), words, (rows, length), generator=generator)
    return {**inputs, "decoder_input_ids": shifted(ids, model.config)}


def require_one_stack(config: Any, what: str) -> None:
    """Refuse, in one line, what reads sounds, and an encoder and a decoder, where `what` knows models of one stack that
    read text or images."""
    family = family_of(config)
    if family.towers:
        raise UnknownArchitecture(f"models of type {config.model_type!r} are two towers, and {what} works on one")
    if family.sound:
        raise UnknownArchitecture(
            f"models of type {config.model_type!r} read sounds, and {what} works on models of text and images"
        )
    if family.reads_pairs:
        raise UnknownArchitecture(
            f"models of type {config.model_type!r} are an encoder and a decoder, and {what} works on models of one "
            "stack"
        )


def require_no_experts(config: Any, what: str) -> None:
    """Refuse, in one line, mixtures of experts where `what` knows one feed-forward part in a block."""
    if family_of(config).experts:
        raise UnknownArchitecture(
            f"models of type {config.model_type!r} have experts, and {what} works on models with one feed-forward part "
            "in a block"
        )

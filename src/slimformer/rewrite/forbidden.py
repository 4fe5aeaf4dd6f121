"""Where a lossless rewrite may not be used, or has no use, and why: one sentence, or "" where it may."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from slimformer.messages.words import option
from slimformer.models import Architecture, Site
from slimformer.rewrite.exact import Scope

ACTIVATION_KEYS = ("hidden_act", "activation_function", "activation", "hidden_activation")


def scores_are_bound(model: PreTrainedModel, architecture: Architecture) -> str:
    """Why nothing may move between queries and keys, where that is so."""
    if _normed(model, architecture):
        return "queries and keys are normed head by head, and the norm sees every coordinate"
    if _any_rotary(architecture):
        return "rotary positions turn keys by their place, so what is added to or mixed into keys does not cancel"
    if any(site.distances for site in architecture.heads):
        return "keys are also multiplied with tables by distance, so what is added to them does not cancel"
    return ""


def no_key_bias(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> str:
    """Why the bias of keys stays."""
    return (
        _without_bias(architecture, 1, "keys have no bias")
        or scores_are_bound(model, architecture)
        or _unsayable(architecture, scope)
    )


def no_value_bias(_model: PreTrainedModel, architecture: Architecture, scope: Scope) -> str:
    """Why the bias of values stays."""
    if reason := _without_bias(architecture, 2, "values have no bias"):
        return reason
    if not any(site.reader_bias for site in attentions(architecture)):
        return "the output projection has no bias to take it, and a new one would cost more than is saved"
    return _unsayable(architecture, scope) or scope.rounds


def only_ragged(_model: PreTrainedModel, _architecture: Architecture, scope: Scope) -> str:
    """Why sizes of attention stay."""
    return (
        f"the stock config cannot say it block by block; use {option('format', 'ragged')}"
        if scope.format == "plain"
        else ""
    )


def no_value_ranks(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> str:
    """Why values keep their rank."""
    return only_ragged(model, architecture, scope) or scope.rounds


def no_score_ranks(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> str:
    """Why queries and keys keep their rank. Zero planes need no arithmetic."""
    if _normed(model, architecture):
        return scores_are_bound(model, architecture)
    return only_ragged(model, architecture, scope) or ("" if _any_rotary(architecture) else scope.rounds)


def no_centring(model: PreTrainedModel, architecture: Architecture, _scope: Scope) -> str:
    """Why keys cannot be centred."""
    return scores_are_bound(model, architecture)


def no_sums(_model: PreTrainedModel, _architecture: Architecture, scope: Scope) -> str:
    """Why columns cannot be added up."""
    return scope.rounds


def never(_model: PreTrainedModel, _architecture: Architecture, _scope: Scope) -> str:
    """Nothing forbids it."""
    return ""


def not_homogeneous(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> str:
    """Why no factor can move from the rows of a neuron to its column."""
    if not all(site.gated for site in architecture.neurons) and not is_relu(model):
        return f"{activation_name(model)} is not homogeneous, and there is no gate"
    return "float16 has too small a range" if scope.dtype == torch.float16 else ""


def activation_name(model: PreTrainedModel) -> str:
    """What the config calls the activation of the neurons; of towers that have different ones, all of them."""
    parts = [getattr(model.config, name) for name in ("text_config", "vision_config") if hasattr(model.config, name)]
    names = [next(str(getattr(c, key)) for key in ACTIVATION_KEYS if hasattr(c, key)) for c in parts or [model.config]]
    return " and ".join(dict.fromkeys(names))


def is_relu(model: PreTrainedModel) -> bool:
    return activation_name(model) == "relu"


def attentions(architecture: Architecture, *, ranks: bool = False) -> list[Site]:
    """The sites of attention where it can be cut; with `ranks` those that may be cut by rank, too."""
    blocks = [block for block in architecture.blocks if block.ranked or not ranks]
    return [site for block in blocks for site in block.heads if not site.stays]


def _normed(model: PreTrainedModel, architecture: Architecture) -> bool:
    return any(hasattr(model.get_submodule(s.module), "q_norm") for s in architecture.heads)


def _any_rotary(architecture: Architecture) -> bool:
    return any(site.attention.rotary for site in architecture.heads)


def _without_bias(architecture: Architecture, role: int, reason: str) -> str:
    return "" if any(site.writers[role].bias for site in attentions(architecture)) else reason


def _unsayable(architecture: Architecture, scope: Scope) -> str:
    if any(site.attention.fused for site in attentions(architecture)):
        return "queries, keys and values share one bias vector, of which no part can be left out"
    return "a stock config cannot say that queries alone have a bias" if scope.format == "plain" else ""

"""The norms around a feed-forward part: on which sphere its input lies, and whether the scale of its output matters.

post-norm    x = Norm(h + attention),   h' = Norm(x + mlp(x))     what reads the sum is a norm: it may be λ times itself
pre-norm     x = Norm(h),               h' = h + mlp(x)           mlp(x) is added to a stream that keeps its scale
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.errors import ScaleMatters
from slimformer.models.architecture import Architecture, base_path
from slimformer.models.description import is_pre_norm
from slimformer.models.families import family_of


@dataclass(frozen=True)
class MLPNorms:
    """Modules by full name. `after` is None where the sum goes on as it is; `reason` says why scale matters then."""

    before: str | None
    after: str | None
    reason: str


@dataclass(frozen=True)
class Affine:
    """What a norm does after it has normed: x = gain · s + shift."""

    gain: Tensor
    shift: Tensor


def mlp_norms(model: PreTrainedModel, architecture: Architecture, i: int) -> MLPNorms:
    """The norm that the feed-forward part of block i reads, and the one that reads the sum with it, if there is one."""
    block = architecture.blocks[i]
    if len(block.neurons) != 1:
        return MLPNorms(None, None, f"{block.name} has {len(block.neurons)} feed-forward parts")
    (site,) = block.neurons
    before = block.sites[block.sites.index(site) - 1].part
    if site.part.norm is None and site.part.norm_after is None:
        name = architecture.family.name
        return MLPNorms(None, None, f"nobody has said which norms stand around the feed-forward parts of {name}")
    if is_pre_norm(model, architecture.layout(site), site.part):
        reason = (
            f"{architecture.model_type} norms before it reads (pre-norm): what its feed-forward parts write is added "
            "to a stream that keeps its scale, so a map that is right up to a factor is wrong"
        )
        return MLPNorms(site.norm, None, reason)
    return MLPNorms(f"{site.root}.{before.norm_after}", f"{site.root}.{site.part.norm_after}", "")


def require_scale_free(model: PreTrainedModel, architecture: Architecture, i: int) -> str:
    """The norm that forgets the scale of the sum with the feed-forward part of block i; refused where there is none."""
    norms = mlp_norms(model, architecture, i)
    if norms.after is None:
        raise ScaleMatters(f"no scale-free map for block {i}: {norms.reason}")
    return norms.after


def final_norm(model: PreTrainedModel) -> Any:
    """The norm after the last block; none where the family, or this checkpoint of it, has none."""
    path = family_of(model.config).stacks[-1].final_norm
    try:
        return model.get_submodule(base_path(model) + path) if path else None
    except AttributeError:
        return None


def affine_of(norm: Any, *, from_one: bool = False) -> Affine:
    """Gain and shift of a LayerNorm or RMSNorm; ones and zeros where it has none. `from_one`: gains are 1 + weight."""
    gain, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
    gain = torch.ones(norm.normalized_shape) if gain is None else gain.detach() + from_one
    return Affine(gain, torch.zeros_like(gain) if shift is None else shift.detach())

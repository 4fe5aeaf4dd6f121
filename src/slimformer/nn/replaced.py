"""What can stand in the place of a whole feed-forward part: a linear map, or one with features of the sphere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from slimformer.decompose.linear_map import AffineMap
from slimformer.errors import UnknownMethod
from slimformer.models import Architecture, describe
from slimformer.models.architecture import NEURONS, Block
from slimformer.nn.features import Features
from slimformer.nn.long_context import require_every_key
from slimformer.nn.stand_ins import StandIn


def stand_in(fitted: AffineMap, features: Features | None = None, *, by: str, bias: bool = True) -> StandIn:
    """ŷ = A [x, φ(s)] + b as a module that can be saved, in single precision."""
    settings: dict[str, Any] = {"by": by, "bias": bias}
    if features is not None:
        settings |= {"kind": features.kind, "count": len(features.W), "degree": features.degree}
    module = StandIn(len(fitted.A), settings)
    with torch.no_grad():
        for name in ("W", "a", "gain", "shift") if features else ():
            getattr(module, name).copy_(getattr(features, name))
        module.out.weight.copy_(fitted.A)
        if bias:
            module.out.bias.copy_(fitted.b)
    return module.requires_grad_(False)


def put_mlp(model: PreTrainedModel, architecture: Architecture, i: int, module: nn.Module) -> None:
    """Let `module` stand for the feed-forward part of block i, in place. The norms and the sum around it stay."""
    site = architecture.blocks[i].one(NEURONS)
    part, block = site.feed_forward, model.get_submodule(site.root)
    for name in part.mlp_inert:
        block.set_submodule(name, nn.Identity())
    block.set_submodule(part.mlp, module.to(model.device, model.dtype))


def replaced_parts(model: PreTrainedModel, blocks: Iterable[Block]) -> dict[str, dict[str, Any]]:
    """What stands in the place of feed-forward parts, by the number of the block in its stack."""
    parts = {}
    for i, block in enumerate(blocks):
        for site in block.neurons:
            module = model.get_submodule(site.root).get_submodule(site.feed_forward.mlp or site.part.out)
            if settings := getattr(module, "stands_in", None):
                parts[str(i)] = dict(settings)
    return parts


def require_uncut(model: PreTrainedModel) -> None:
    """Refuse to cut what runs over groups of keys, or without its own feed-forward parts."""
    require_every_key(model)
    if any(site.kind == NEURONS and site.fixed for site in describe(model)):
        raise UnknownMethod(
            "feed-forward parts of this model were replaced (the step replace), and cuts do not follow that; cut first "
            "and replace in the result, or quantize this one"
        )

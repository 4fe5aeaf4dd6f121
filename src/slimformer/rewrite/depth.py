"""Fewer blocks, in place: drop some, and let the writer before them write something else."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn
from transformers import PreTrainedModel

from slimformer.decompose.depth import Map
from slimformer.errors import PlanDoesNotFit
from slimformer.models import Architecture, Site
from slimformer.models.architecture import weight_of
from slimformer.rewrite import surgery

OF_EACH_BLOCK = ("layer_types", "no_rope_layers")  # keys of configs that list something of every block


@torch.no_grad()
def absorb(model: PreTrainedModel, site: Site, fitted: Map) -> None:
    """Let the feed-forward part of a block write T m + c in place of m: W ← T W, b ← T b + c."""
    layer = model.get_submodule(site.reader)
    bias = getattr(layer, "bias", None)
    b = None if bias is None else fitted.T @ bias.detach().cpu().double() + fitted.c
    surgery.write(layer, fitted.T @ weight_of(layer).cpu().double(), b)


def drop_blocks(model: PreTrainedModel, architecture: Architecture, gone: Collection[int]) -> None:
    """Drop blocks in place, and say so in the config. Those left are numbered anew: so they find keys and values."""
    if getattr(model.config, "slimformer", None):
        raise PlanDoesNotFit("blocks of this model have sizes of their own; drop blocks of the dense model first")
    (stack,) = architecture.stacks
    blocks_left = [model.get_submodule(block.path) for block in stack.blocks if block.index not in gone]
    model.set_submodule(stack.path, nn.ModuleList(blocks_left))
    for i, block in enumerate(blocks_left):
        for module in block.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = i  # type: ignore[assignment]
    for name in OF_EACH_BLOCK:
        per_block = getattr(model.config, name, None)
        if per_block:
            setattr(model.config, name, [each for i, each in enumerate(per_block) if i not in gone])
    model.config.num_hidden_layers = len(blocks_left)

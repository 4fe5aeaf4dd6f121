"""What can stand in the place of a whole feed-forward part: a linear map, two thin ones, or features of the sphere."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.decompose.linear_map import AffineMap, RankMaps
from slimformer.decompose.sphere import Features
from slimformer.models import Architecture
from slimformer.models.architecture import NEURONS


class SphereMLP(nn.Module):
    """ŷ = A [x, φ(s)] + b with s the point of the sphere that x comes from. D (D + p) + p m multiplications a token."""

    W: Tensor
    a: Tensor
    gain: Tensor
    shift: Tensor

    def __init__(self, features: Features, found: AffineMap) -> None:
        super().__init__()
        self.kind, self.degree = features.kind, features.degree
        for name in ("W", "a", "gain", "shift"):
            self.register_buffer(name, getattr(features, name).float().clone())
        self.out = linear_mlp(found)

    def features(self) -> Features:
        return Features(self.kind, self.W, self.a, self.degree, self.gain, self.shift)

    def forward(self, hidden_states: Tensor) -> Tensor:
        rows = hidden_states.flatten(0, -2)
        made = self.out(torch.cat([rows, self.features()(rows)], -1))
        return made.unflatten(0, hidden_states.shape[:-1])


class NoMLP(nn.Module):
    """Nothing is added to the stream."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.zeros_like(hidden_states)


def linear_mlp(found: AffineMap) -> nn.Linear:
    """A x + b as a layer, in single precision."""
    m, d = found.A.shape
    layer = nn.Linear(d, m)
    layer.weight = nn.Parameter(found.A.float().contiguous(), requires_grad=False)
    layer.bias = nn.Parameter(found.b.float(), requires_grad=False)
    return layer


def low_rank_mlp(maps: RankMaps, r: int) -> nn.Sequential:
    """U_r V_r x + b as two thin layers, r (d + m) multiplications a token."""
    U, V, b = maps.factors(r)
    first = linear_mlp(AffineMap(V, torch.zeros_like(V[:, 0])))
    first.register_parameter("bias", None)
    return nn.Sequential(first, linear_mlp(AffineMap(U, b)))


def put_mlp(model: PreTrainedModel, architecture: Architecture, i: int, module: nn.Module) -> None:
    """Let `module` stand for the feed-forward part of block i, in place. The norms and the sum around it stay."""
    site = architecture.blocks[i].one(NEURONS)
    part, block = site.feed_forward, model.get_submodule(site.root)
    for name in part.mlp_inert:
        block.set_submodule(name, nn.Identity())
    block.set_submodule(part.mlp, module.to(model.device, model.dtype))

"""Ways to replace a feed-forward part, each as a module for `slimformer.nn.replaced.put_mlp`.

Budgets are counted in D² multiplications a token, D the width of the stream; a dense part of all models measured has 8.

    skip            0       nothing is written
    low-rank        ½       reduced-rank regression of the output on the input
    least-squares   1       ridge regression of the output on the input
    unit            1       post-norm: least squares to the *direction* of the sum. Pre-norm, where the scale of what
                            is written matters: every token weighted by 1 / ‖stream‖², as the norm that follows does
    scales          1       A v ≈ λu, λ by the eigenvector; post-norm only
    gauge           1       A v ≈ λu, λ by the linear solve; post-norm only
    cosine          1       A v ≈ λu by the greatest mean cosine; post-norm only
    fourier, arc-cosine, gegenbauer, harmonics    2, 3    features of the sphere beside the linear map
    elimination     ½ … 3   neurons kept by elimination, the output refitted
    bypass          1 … 3   a linear path for ½ (rank D/4; without a gate D/8) beside neurons, fitted together
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from slimformer.decompose import Width, select
from slimformer.decompose.bypass import Joint
from slimformer.decompose.bypass import bypass as fitted_bypass
from slimformer.decompose.elimination import elimination
from slimformer.decompose.linear_map import AffineMap, RankMaps, linear_map, reduced_rank
from slimformer.linalg.moments import Moments
from slimformer.linalg.pairs import Pairs
from slimformer.models.architecture import weight_of
from slimformer.rewrite.replace import How, Part, Rows, fitted, left

RIDGE = 1e-4
NEURON_RIDGE = 1e-3  # that of the recipes


@dataclass(frozen=True)
class Neural(Rows):
    """Rows with the neurons (z), which are the other side of the comparison."""

    z: Tensor


@dataclass(frozen=True, eq=False)
class Subject(Part):
    """A part with rows to measure on; what is kept of it may be neurons."""

    fit: Neural
    held: Neural | None = None

    @property
    def matrices(self) -> int:
        """That a neuron has a row or a column of."""
        return len(self.site.writers) + 1

    @cached_property
    def width(self) -> Width:
        moments = Moments.of(self.fit.z)
        W = weight_of(self.model.get_submodule(self.site.reader))
        return Width(self.site.name, W, moments, moments, bias=True)

    @cached_property
    def order(self) -> tuple[int, ...]:
        return elimination(self.width, ridge=NEURON_RIDGE).order


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


class Neurons(nn.Module):
    """σ(W x + b), gated where the model is, read by `down`; with a linear path beside it if there is one."""

    def __init__(self, part: Subject, kept: Tensor, down: nn.Linear, beside: nn.Module | None = None) -> None:
        super().__init__()
        config = part.model.config
        self.act = ACT2FN[getattr(config, "hidden_act", None) or config.activation_function]
        self.writers = nn.ModuleList()
        for writer in part.site.writers:
            layer = part.model.get_submodule(writer.module)
            bias = layer.bias[kept] if writer.bias else torch.zeros(len(kept))
            self.writers.append(linear_mlp(AffineMap(weight_of(layer)[kept], bias.detach())))
        self.down, self.beside = down, beside

    def forward(self, hidden_states: Tensor) -> Tensor:
        first, *rest = (writer(hidden_states) for writer in self.writers)
        made = self.act(first) * rest[0] if rest else self.act(first)
        out = self.down(made)
        return out if self.beside is None else out + self.beside(hidden_states)


# --- maps and features: as the step `replace` fits them -----------------------------------------------------------


def skip(_part: Subject, _budget: float) -> nn.Module:
    return NoMLP()


def low_rank(part: Subject, budget: float) -> nn.Module:
    return low_rank_mlp(reduced_rank(Pairs.of(part.fit.x, part.fit.y), ridge=RIDGE), int(budget * part.D / 2))


def least_squares(part: Subject, _budget: float) -> nn.Module:
    return linear_mlp(linear_map(Pairs.of(part.fit.x, part.fit.y), ridge=RIDGE))


def way(how: How) -> Callable[[Subject, float], nn.Module]:
    """A way of the step; features for what a budget leaves beside a linear map: each has a direction and a column."""

    def make(part: Subject, budget: float) -> nn.Module:
        count = int((budget - 1) * part.D / 2)
        return fitted(part, replace(how, features=count or None))

    return make


# --- neurons ----------------------------------------------------------------------------------------------------


def eliminated(part: Subject, budget: float) -> nn.Module:
    kept = select(part.width, part.order, int(budget * part.D / part.matrices), ridge=NEURON_RIDGE)
    layer = part.model.get_submodule(part.site.reader)
    W = weight_of(layer).double()
    b = W @ kept.c + (layer.bias.detach() if part.site.reader_bias else 0.0)
    return Neurons(part, kept.J, linear_mlp(AffineMap(W @ kept.E, b)))


def bypass(part: Subject, budget: float) -> nn.Module:
    """A linear path for D²/2, and neurons for the rest. Without a gate a rank is two neurons, so it costs twice."""
    r = part.D // 4 if part.site.gated else part.D // 8
    k = int((budget - 0.5) * part.D / part.matrices)
    moments = Moments.of(torch.cat([part.fit.z, part.fit.x], 1))
    joint = Joint(part.site.name, part.width.W, moments, moments, bias=True)
    found = fitted_bypass(joint, part.order, k, r, ridge=NEURON_RIDGE)
    layer = part.model.get_submodule(part.site.reader)
    b = found.c + (layer.bias.detach() if part.site.reader_bias else 0.0)
    path = nn.Sequential(_thin(found.A), _thin(found.B))
    return Neurons(part, found.J, linear_mlp(AffineMap(found.N, b)), path)


def _thin(W: Tensor) -> nn.Linear:
    layer = linear_mlp(AffineMap(W, torch.zeros_like(W[:, 0])))
    layer.register_parameter("bias", None)
    return layer


METHODS: dict[str, tuple[Callable[[Subject, float], nn.Module], tuple[float, ...]]] = {
    "skip": (skip, (0.0,)),
    "low-rank": (low_rank, (0.5,)),
    "least-squares": (least_squares, (1.0,)),
    "unit": (way(How("linear")), (1.0,)),
    "scales": (way(How("scale-free", "eigenvector")), (1.0,)),
    "gauge": (way(How("scale-free", "solve")), (1.0,)),
    "cosine": (way(How("scale-free", "cosine")), (1.0,)),
    "fourier": (way(How("fourier")), (2.0, 3.0)),
    "arc-cosine": (way(How("arc-cosine")), (2.0, 3.0)),
    "gegenbauer": (way(How("sphere")), (2.0, 3.0)),
    "harmonics": (way(How("harmonics")), (2.0, 3.0)),
    "elimination": (eliminated, (0.5, 1.0, 2.0, 3.0)),
    "bypass": (bypass, (1.0, 2.0, 3.0)),
}


def held_out(part: Subject, module: nn.Module) -> tuple[float, float]:
    """R² of what is written, and the mean cosine of what reads it."""
    assert part.held is not None
    return left(module, part.held, post_norm=part.post_norm)

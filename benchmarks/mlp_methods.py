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
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from slimformer.decompose import Width, select
from slimformer.decompose.bypass import Joint
from slimformer.decompose.bypass import bypass as fitted_bypass
from slimformer.decompose.elimination import elimination
from slimformer.decompose.linear_map import AffineMap, linear_map, reduced_rank
from slimformer.decompose.scale_free import Directions, Scales, aligned, gauged_scales, top_scales
from slimformer.decompose.sphere import (
    Features,
    arc_cosine_features,
    fourier_features,
    gegenbauer_features,
    harmonic_features,
    on_sphere,
)
from slimformer.linalg.moments import Moments
from slimformer.linalg.pairs import Pairs
from slimformer.linalg.sphere import MOST_DIMENSIONS, harmonic_count
from slimformer.models import Architecture
from slimformer.models.architecture import weight_of
from slimformer.models.norms import affine_of, mlp_norms, require_scale_free
from slimformer.nn.replaced import NoMLP, SphereMLP, linear_mlp, low_rank_mlp

RIDGE = 1e-4
NEURON_RIDGE = 1e-3  # that of the recipes
SWEEPS, TURNS = 40, 15
ALIKE = 512  # rows whose distances give the width of the kernel of Fourier features


@dataclass(frozen=True)
class Rows:
    """Of a feed-forward part: what it reads (x), its neurons (z), what it writes (y), the stream it is added to (h)."""

    x: Tensor
    z: Tensor
    y: Tensor
    h: Tensor


@dataclass(frozen=True, eq=False)
class Part:
    """The feed-forward part of one block, with rows to fit and rows to measure on."""

    model: PreTrainedModel
    architecture: Architecture
    block: int
    fit: Rows
    held: Rows

    @cached_property
    def site(self):
        return self.architecture[f"blocks.{self.block}.ffn.hidden"]

    @property
    def D(self) -> int:
        return self.architecture.hidden

    @property
    def matrices(self) -> int:
        """That a neuron has a row or a column of."""
        return len(self.site.writers) + 1

    @cached_property
    def post_norm(self) -> bool:
        return mlp_norms(self.model, self.architecture, self.block).after is not None

    @cached_property
    def affine(self):
        norms = mlp_norms(self.model, self.architecture, self.block)
        return affine_of(self.model.get_submodule(norms.before or ""))

    @cached_property
    def pairs(self) -> Pairs:
        return Pairs.of(self.fit.x, self.fit.y)

    @cached_property
    def with_one(self) -> Tensor:
        return torch.cat([self.fit.x, torch.ones_like(self.fit.x[:, :1])], 1)

    @cached_property
    def width(self) -> Width:
        moments = Moments.of(self.fit.z)
        W = weight_of(self.model.get_submodule(self.site.reader))
        return Width(self.site.name, W, moments, moments, bias=True)

    @cached_property
    def order(self) -> tuple[int, ...]:
        return elimination(self.width, ridge=NEURON_RIDGE).order

    @cached_property
    def directions(self) -> Directions:
        total = self.fit.h + self.fit.y
        return Directions.of(self.with_one, total - total.mean(1, keepdim=True), ridge=1e-5)

    @cached_property
    def scales(self) -> Scales:
        return top_scales(self.directions, sweeps=SWEEPS, rtol=1e-6)


class Neurons(nn.Module):
    """σ(W x + b), gated where the model is, read by `down`; with a linear path beside it if there is one."""

    def __init__(self, part: Part, kept: Tensor, down: nn.Linear, beside: nn.Module | None = None) -> None:
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


# --- maps -------------------------------------------------------------------------------------------------------


def skip(_part: Part, _budget: float) -> nn.Module:
    return NoMLP()


def low_rank(part: Part, budget: float) -> nn.Module:
    return low_rank_mlp(reduced_rank(part.pairs, ridge=RIDGE), int(budget * part.D / 2))


def least_squares(part: Part, _budget: float) -> nn.Module:
    return linear_mlp(linear_map(part.pairs, ridge=RIDGE))


def unit(part: Part, _budget: float) -> nn.Module:
    if part.post_norm:
        return _of_the_sum(part, part.directions.map_of(torch.ones_like(part.fit.x[:, 0])))
    ω = 1 / (part.fit.h + part.fit.y).norm(dim=1, keepdim=True)
    found = linear_map(Pairs.of(ω * part.with_one, ω * part.fit.y), ridge=RIDGE, bias=False)
    return linear_mlp(AffineMap(found.A[:, :-1], found.A[:, -1]))


def scales(part: Part, _budget: float) -> nn.Module:
    require_scale_free(part.model, part.architecture, part.block)
    return _of_the_sum(part, part.scales.A)


def gauge(part: Part, _budget: float) -> nn.Module:
    require_scale_free(part.model, part.architecture, part.block)
    return _of_the_sum(part, gauged_scales(part.directions, ε=1e-2, sweeps=SWEEPS, rtol=1e-3).A)


def cosine(part: Part, _budget: float) -> nn.Module:
    require_scale_free(part.model, part.architecture, part.block)
    start = max(
        (part.scales.A, part.directions.map_of(torch.ones_like(part.fit.x[:, 0]))),
        key=lambda A: aligned(part.directions, A, turns=0).cosines[0],
    )
    return _of_the_sum(part, aligned(part.directions, start, turns=TURNS, rtol=1e-5).A)


def _of_the_sum(part: Part, A: Tensor) -> nn.Module:
    """A map of x to the whole sum x + ŷ, as one to ŷ alone."""
    return linear_mlp(AffineMap(A[:, :-1] - torch.eye(part.D), A[:, -1]))


# --- features ---------------------------------------------------------------------------------------------------


def _fitted(part: Part, features: Features) -> nn.Module:
    both = torch.cat([part.fit.x, features(part.fit.x)], 1)
    return SphereMLP(features, linear_map(Pairs.of(both, part.fit.y), ridge=RIDGE, standardise=True))


def _count(part: Part, budget: float) -> int:
    """Features beside a linear map: each has a direction and a column of coefficients."""
    return int((budget - 1) * part.D / 2)


def fourier(part: Part, budget: float) -> nn.Module:
    S = on_sphere(part.fit.x[:: max(1, len(part.fit.x) // ALIKE)], part.affine.gain, part.affine.shift)
    length = float(torch.pdist(S).median())
    return _fitted(part, fourier_features(_count(part, budget), part.affine.gain, part.affine.shift, length=length))


def arc_cosine(part: Part, budget: float) -> nn.Module:
    return _fitted(part, arc_cosine_features(_count(part, budget), part.affine.gain, part.affine.shift))


def gegenbauer(part: Part, budget: float) -> nn.Module:
    return _fitted(part, gegenbauer_features(_count(part, budget), part.affine.gain, part.affine.shift))


def harmonics(part: Part, budget: float) -> nn.Module:
    """On eight directions, of the highest degree that the budget pays for."""
    q, gain, shift = MOST_DIMENSIONS, part.affine.gain, part.affine.shift
    degree, count = 2, harmonic_count(q, 2)
    while count + harmonic_count(q, degree + 1) + q <= (budget - 1) * part.D:
        degree += 1
        count += harmonic_count(q, degree)
    seen = Moments.of(on_sphere(part.fit.x, gain, shift))
    return _fitted(part, harmonic_features(seen, gain, shift, directions=q, degree=degree))


# --- neurons ----------------------------------------------------------------------------------------------------


def eliminated(part: Part, budget: float) -> nn.Module:
    kept = select(part.width, part.order, int(budget * part.D / part.matrices), ridge=NEURON_RIDGE)
    layer = part.model.get_submodule(part.site.reader)
    W = weight_of(layer).double()
    b = W @ kept.c + (layer.bias.detach() if part.site.reader_bias else 0.0)
    return Neurons(part, kept.J, linear_mlp(AffineMap(W @ kept.E, b)))


def bypass(part: Part, budget: float) -> nn.Module:
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


METHODS: dict[str, tuple[Callable[[Part, float], nn.Module], tuple[float, ...]]] = {
    "skip": (skip, (0.0,)),
    "low-rank": (low_rank, (0.5,)),
    "least-squares": (least_squares, (1.0,)),
    "unit": (unit, (1.0,)),
    "scales": (scales, (1.0,)),
    "gauge": (gauge, (1.0,)),
    "cosine": (cosine, (1.0,)),
    "fourier": (fourier, (2.0, 3.0)),
    "arc-cosine": (arc_cosine, (2.0, 3.0)),
    "gegenbauer": (gegenbauer, (2.0, 3.0)),
    "harmonics": (harmonics, (2.0, 3.0)),
    "elimination": (eliminated, (0.5, 1.0, 2.0, 3.0)),
    "bypass": (bypass, (1.0, 2.0, 3.0)),
}


def held_out(part: Part, module: nn.Module) -> tuple[float, float]:
    """R² of what is written, and the mean cosine of what reads it: of the normed sum, or, pre-norm, of the output."""
    x, y, h = part.held.x, part.held.y, part.held.h
    made = module(x)
    r2 = 1 - float((y - made).square().sum() / (y - y.mean(0)).square().sum())
    if not part.post_norm:
        return r2, float((normalize(made, dim=1) * normalize(y, dim=1)).sum(1).mean())
    found, true = ((rows - rows.mean(1, keepdim=True)) for rows in (h + made, h + y))
    return r2, float((normalize(found, dim=1) * normalize(true, dim=1)).sum(1).mean())

"""Feed-forward parts replaced by maps: what each way is fitted to, from rows of what the dense model sends.

    linear        A x + b. Post-norm: to the unit sum, whose length the norm forgets. Pre-norm: tokens weighted by
                  1 / ‖stream‖², as the norm that follows weights them
    scale-free    A v ≈ λu, post-norm only; λ by the greatest mean cosine, by the eigenvector or by the linear solve
    sphere, arc-cosine, fourier, harmonics       features of the sphere beside A x, by least squares

Every part is fitted by itself. docs/methods/replace-mlp.md has the formulas, and what each way loses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from slimformer.decompose.linear_map import AffineMap, linear_map
from slimformer.decompose.scale_free import Directions, Scales, aligned, gauged_scales, top_scales
from slimformer.errors import NotFinite
from slimformer.linalg.moments import Moments
from slimformer.linalg.pairs import Pairs
from slimformer.models import Architecture, Site
from slimformer.models.architecture import NEURONS
from slimformer.models.hooks import listening
from slimformer.models.norms import Affine, affine_of, mlp_norms, require_scale_free
from slimformer.models.walk import Stream, Visit, real_rows
from slimformer.nn.features import (
    MOST_DIMENSIONS,
    Features,
    arc_cosine_features,
    fourier_features,
    gegenbauer_features,
    harmonic_features,
)
from slimformer.nn.replaced import stand_in
from slimformer.nn.stand_ins import StandIn, harmonic_count, on_sphere
from slimformer.rewrite.bypass import Reading

Way = Literal["linear", "scale-free", "sphere", "arc-cosine", "fourier", "harmonics"]
Scale = Literal["cosine", "eigenvector", "solve"]
RIDGE = 1e-4
RIDGE_DIRECTIONS = 1e-5
SWEEPS, TURNS = 40, 15
ALIKE = 512  # rows whose distances give the width of the kernel of Fourier features


@dataclass(frozen=True)
class Rows:
    """Of a feed-forward part: what it reads (x), what it writes (y), the stream it is added to (h)."""

    x: Tensor
    y: Tensor
    h: Tensor


@dataclass(frozen=True)
class How:
    """`features` are directions of random features, or what harmonics may cost in their place."""

    by: Way = "linear"
    scale: Scale = "cosine"
    features: int | None = None
    bias: bool = True
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Part:
    """The feed-forward part of one block, with rows to fit."""

    model: PreTrainedModel
    architecture: Architecture
    block: int
    fit: Rows
    dtype: torch.dtype = torch.float32  # in which what is fitted will be stored

    @cached_property
    def site(self) -> Site:
        return self.architecture.blocks[self.block].one(NEURONS)

    @property
    def D(self) -> int:
        return self.site.outer

    @cached_property
    def post_norm(self) -> bool:
        """Does a norm read the sum with it, so that only the direction of the sum matters?"""
        return mlp_norms(self.model, self.architecture, self.block).after is not None

    @cached_property
    def affine(self) -> Affine:
        """γ and β of the norm it reads."""
        before = mlp_norms(self.model, self.architecture, self.block).before
        from_one = self.architecture.layout(self.site).gains_from_one
        affine = affine_of(self.model.get_submodule(before) if before else nn.LayerNorm(self.D), from_one=from_one)
        return Affine(affine.gain.cpu().double(), affine.shift.cpu().double())

    @cached_property
    def with_one(self) -> Tensor:
        return torch.cat([self.fit.x, torch.ones_like(self.fit.x[:, :1])], 1)

    def directions(self, *, bias: bool) -> Directions:
        """Rows to map, and the centred sum they should point along."""
        total = self.fit.h + self.fit.y
        V = self.with_one if bias else self.fit.x
        return Directions.of(V.double(), (total - total.mean(1, keepdim=True)).double(), ridge=RIDGE_DIRECTIONS)


def fitted(part: Part, how: How) -> StandIn:
    """What stands in the place of a part, fitted. Cost: that of the least squares, O(n d² + d³), some sweeps of it."""
    if how.by == "linear":
        return linear(part, bias=how.bias)
    if how.by == "scale-free":
        return scale_free(part, how.scale, bias=how.bias)
    return with_features(part, drawn(part, how), how)


# --- maps -------------------------------------------------------------------------------------------------------


def linear(part: Part, *, bias: bool = True) -> StandIn:
    """A x + b, to the direction of the sum where a norm reads it, else relative to the stream."""
    rows = part.fit
    if part.post_norm:
        data = part.directions(bias=bias)
        return _of_the_sum(part, data.map_of(torch.ones_like(data.V[:, 0])), "linear", bias=bias)
    V = part.with_one if bias else rows.x
    ω = 1 / (rows.h + rows.y).norm(dim=1, keepdim=True).clamp_min(1e-12)
    solution = linear_map(Pairs.of(ω * V, ω * rows.y), ridge=RIDGE, bias=False)
    A, b = (solution.A[:, :-1], solution.A[:, -1]) if bias else (solution.A, torch.zeros(part.D, dtype=torch.float64))
    return stand_in(AffineMap(A, b), by="linear", bias=bias)


def scale_free(part: Part, scale: Scale, *, bias: bool = True) -> StandIn:
    """A v ≈ λu; refused where the scale of what is written matters."""
    require_scale_free(part.model, part.architecture, part.block)
    data = part.directions(bias=bias)
    if scale == "solve":
        return _of_the_sum(part, gauged_scales(data, ε=1e-2, sweeps=SWEEPS, rtol=1e-3).A, "scale-free", bias=bias)
    top: Scales = top_scales(data, sweeps=SWEEPS, rtol=1e-6)
    if scale == "eigenvector":
        return _of_the_sum(part, top.A, "scale-free", bias=bias)
    starts = (top.A, data.map_of(torch.ones_like(data.V[:, 0])))
    start = max(starts, key=lambda A: aligned(data, A, turns=0).cosines[0])
    return _of_the_sum(part, aligned(data, start, turns=TURNS, rtol=1e-5).A, "scale-free", bias=bias)


def _of_the_sum(part: Part, A: Tensor, by: Way, *, bias: bool) -> StandIn:
    """A map of x to the whole sum x + ŷ, as one to ŷ alone."""
    M, b = (A[:, :-1], A[:, -1]) if bias else (A, torch.zeros_like(A[:, 0]))
    return stand_in(AffineMap(M - torch.eye(part.D, dtype=M.dtype), b), by=by, bias=bias)


# --- features ---------------------------------------------------------------------------------------------------


def drawn(part: Part, how: How) -> Features:
    """The features that are asked for; half as many as the stream is wide where no number is given."""
    gain, shift, count = part.affine.gain, part.affine.shift, how.features or max(1, part.D // 2)
    if how.by == "fourier":
        S = on_sphere(part.fit.x[:: max(1, len(part.fit.x) // ALIKE)].double(), gain, shift)
        length = float(torch.pdist(S).median())
        return fourier_features(count, gain, shift, seed=how.seed, length=length)
    if how.by == "harmonics":
        return _harmonics(part, count)
    make = gegenbauer_features if how.by == "sphere" else arc_cosine_features
    return make(count, gain, shift, seed=how.seed)


def _harmonics(part: Part, count: int) -> Features:
    """On eight directions (or as many as there are), of the highest degree that costs no more than `count` random
    features: these have a direction and a column each."""
    gain, shift = part.affine.gain, part.affine.shift
    q = min(MOST_DIMENSIONS, part.D)
    degree, columns = 2, harmonic_count(q, 2)
    while columns + harmonic_count(q, degree + 1) + q <= 2 * count:
        degree += 1
        columns += harmonic_count(q, degree)
    seen = Moments.of(on_sphere(part.fit.x.double(), gain, shift))
    return harmonic_features(seen, gain, shift, directions=q, degree=degree)


def with_features(part: Part, features: Features, how: How) -> StandIn:
    """Features beside the linear map, fitted together as they will be stored."""
    tensors = {name: getattr(features, name).to(part.dtype).double() for name in ("W", "a", "gain", "shift")}
    stored = replace(features, **tensors)
    both = torch.cat([part.fit.x.double(), stored(part.fit.x.double())], 1)
    solution = linear_map(Pairs.of(both, part.fit.y.double()), ridge=RIDGE, bias=how.bias, standardise=True)
    return stand_in(solution, stored, by=how.by, bias=how.bias)


# --- what parts see, and what stands in for them leaves ---------------------------------------------------------


def rows_of(visit: Visit, streams: Sequence[Stream]) -> Rows:
    """What goes through the feed-forward part of a block; the streams move on by one block."""
    site = visit.here.one(NEURONS)
    collected: dict[str, list[Tensor]] = {name: [] for name in "xyh"}
    for stream in streams:
        heard: dict[str, Tensor] = {}
        hear = {name: partial(heard.__setitem__, name) for name in collected}
        read, written = {site.first: hear["x"]}, {Reading(site).exit: hear["y"]}
        with (
            listening(visit.model, inputs=read, outputs=written),
            listening(visit.model, inputs={site.entry: hear["h"]}),
        ):
            visit.advance(stream)
        for name, rows in heard.items():
            collected[name].append(real_rows(rows, stream.rows).float().cpu())
    seen = Rows(**{name: torch.cat(each) for name, each in collected.items()})
    if not all(bool(torch.isfinite(each).all()) for each in (seen.x, seen.y, seen.h)):
        raise NotFinite(f"{site.name}: NaN or infinite activations during calibration; check the weights")
    return seen


@torch.no_grad()
def left(module: nn.Module, held: Rows, *, post_norm: bool) -> tuple[float, float]:
    """R² of what is written, and the mean cosine of what reads it: of the normed sum, or, pre-norm, of the output."""
    output = module(held.x).float()
    y, whole = held.y, (held.y - held.y.mean(0)).square().sum()
    r2 = 1 - float((y - output).square().sum() / whole) if whole > 0 else 1.0
    if not post_norm:
        return r2, float((normalize(output, dim=1) * normalize(y, dim=1)).sum(1).mean())
    written, true = ((rows - rows.mean(1, keepdim=True)) for rows in (held.h + output, held.h + y))
    return r2, float((normalize(written, dim=1) * normalize(true, dim=1)).sum(1).mean())


@contextmanager
def standing_in(model: PreTrainedModel, site: Site, module: nn.Module) -> Iterator[None]:
    """Let a module stand for the feed-forward part of a block for a while."""
    part, block = site.feed_forward, model.get_submodule(site.root)
    own = {name: block.get_submodule(name) for name in (part.mlp, *part.mlp_inert)}
    try:
        for name in part.mlp_inert:
            block.set_submodule(name, nn.Identity())
        block.set_submodule(part.mlp, module)
        yield
    finally:
        for name, old in own.items():
            block.set_submodule(name, old)

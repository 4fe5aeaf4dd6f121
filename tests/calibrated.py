"""Tiny models in double precision with their moments and curves, so that laws can be exact."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from families import LENGTH, tiny, tiny_batches
from slimformer.calibrate.collect import BlockMoments, collect
from slimformer.calibrate.text import Batch
from slimformer.decompose import Curve
from slimformer.models import Architecture, describe
from slimformer.models.architecture import weight_of
from slimformer.models.ranks import heads_of, rank_sites
from slimformer.plan import Budget, Plan, Terms, allocate
from slimformer.plan.profile import site_curves
from slimformer.plan.ranks import attention_of
from slimformer.plan.settings import CutSettings
from slimformer.recipe import cut_settings
from slimformer.rewrite.apply import apply


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    """Root mean square norm in single precision, as it was, but in double precision for double precision."""
    wide = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
    eps = self.eps if hasattr(self, "eps") else self.variance_epsilon
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (self.weight + ("Gemma" in type(self).__name__)) * wide.to(hidden_states.dtype)


def _route(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A router whose softmax is of the precision of what it reads."""
    scores = hidden_states @ self.weight.mT
    weights, chosen = scores.softmax(-1).topk(self.top_k)
    return scores, weights / weights.sum(-1, keepdim=True), chosen


def exact(model: PreTrainedModel) -> PreTrainedModel:
    """The model in double precision, norms and routers included."""
    for kind in {type(module) for module in model.modules() if type(module).__name__.endswith("TopKRouter")}:
        kind.forward = _route  # type: ignore[method-assign]
    for kind in {type(module) for module in model.modules() if type(module).__name__.endswith("RMSNorm")}:
        kind.forward = _norm  # type: ignore[method-assign]
    return model.double()


@dataclass(frozen=True, eq=False)
class Calibrated:
    model: PreTrainedModel
    architecture: Architecture
    data: dict[str, list[Batch]]
    blocks: list[BlockMoments]

    def curves(self, recipe: CutSettings) -> dict[str, Curve]:
        curves = self._curves(recipe.selector, recipe.ridge, recipe.absorb_mean)
        return curves | self._rank_curves(recipe.ridge, recipe.absorb_mean) if recipe.attention != "heads" else curves

    @functools.cache  # noqa: B019  lives as long as the tests
    def _rank_curves(self, ridge: float, absorb_mean: bool) -> dict[str, Curve]:
        """In the metric of squares, in which `collect` measures."""
        found = {}
        for site in rank_sites(self.model, self.architecture):
            heads, how = heads_of(self.architecture, site.block), CutSettings(ridge=ridge, absorb_mean=absorb_mean)
            W_o = weight_of(self.model.get_submodule(heads.reader))
            found[site.name] = attention_of(heads, W_o, self.blocks[site.block], how).curve(site)
        return found

    @functools.cache  # noqa: B019  lives as long as the tests
    def _curves(self, selector: str, ridge: float, absorb_mean: bool) -> dict[str, Curve]:
        found: dict[str, Curve] = {}
        for site in self.architecture:
            W, moments = weight_of(self.model.get_submodule(site.reader)), self.blocks[site.block].sites[site.name]
            found |= site_curves(site, W, moments, selector=selector, ridge=ridge, absorb_mean=absorb_mean)
        return found

    def plan(self, macs: float, recipe: CutSettings, *, format: str = "ragged") -> Plan:
        weights = {name: block.error_weight for block in self.blocks for name in block.sites}
        curves = self.curves(recipe)
        ranks = rank_sites(self.model, self.architecture) if recipe.attention != "heads" else ()
        return allocate(self.architecture, curves, Terms(Budget(macs), recipe, LENGTH, weights, format, ranks))

    def apply(self, plan: Plan, recipe: CutSettings) -> PreTrainedModel:
        return apply(plan, self.model, self.curves(recipe), lambda i: self.blocks[i])

    def compress(self, macs: float, recipe: CutSettings, *, format: str = "ragged") -> PreTrainedModel:
        return self.apply(self.plan(macs, recipe, format=format), recipe)


def calibrated(model: PreTrainedModel, *, n: int = 3) -> Calibrated:
    """`model` in double precision, with the moments of random data."""
    model = exact(model)
    data = {"fit": doubled(tiny_batches(model, n)), "select": doubled(tiny_batches(model, 1, seed=1))}
    architecture = describe(model)
    return Calibrated(model, architecture, data, list(collect(model, architecture, data)))


@functools.cache
def stock(model_type: str, head: str | None = None) -> Calibrated:
    """A tiny model as it comes. Shared between tests: nobody may change it."""
    return calibrated(tiny(model_type, head))


def doubled(batches: list[Batch]) -> list[Batch]:
    """Pixels in double precision; tokens are what they are."""
    return [
        replace(batch, inputs={k: v.double() if v.is_floating_point() else v for k, v in batch.inputs.items()})
        for batch in batches
    ]


def recipe(name: str = "balanced", **changes: Any) -> CutSettings:
    """A recipe of the package with some fields changed; the default is exact: hardly any ridge."""
    return cut_settings(name).model_copy(update={"ridge": 1e-12, **changes})


@torch.no_grad()
def outputs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Logits, or states of a bare model, at real positions."""
    found = model(**batch.inputs)
    key = next(key for key in ("logits", "logits_per_image", "last_hidden_state") if key in found)
    out = found[key]
    return out[batch.mask] if batch.mask is not None and out.ndim == 3 else out

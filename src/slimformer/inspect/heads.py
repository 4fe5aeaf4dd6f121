"""The matrices of every head, cut out of the projections of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.models import Architecture, Site
from slimformer.models.architecture import own_rows, weight_of
from slimformer.models.ranks import heads_of


@dataclass(frozen=True)
class HeadFactors:
    """For every query head the rows of its query, key and value, and the columns of its output as rows.

    Scores are xᵀ W_qᵀ W_k y, a head writes W_oᵀ W_v y. Query heads that share a key head repeat it.
    """

    W_q: Float[Tensor, "h r D"]
    W_k: Float[Tensor, "h r D"]
    W_v: Float[Tensor, "h d D"]
    W_o: Float[Tensor, "h d D"]


def head_factors(model: PreTrainedModel, architecture: Architecture, i: int) -> HeadFactors:
    """The heads of block i. A norm of queries and keys is folded in as its gain; what it divides by is left out."""
    site = heads_of(architecture, i)
    attention: Any = model.get_submodule(site.module)
    if site.fixed:
        return HeadFactors(*(W.detach().cpu().float() for W in attention.factors()))
    q, k, v = projection_rows(model, site)
    from_one = architecture.layout(site).gains_from_one
    q, k = (_gained(attention, name, W, from_one) for name, W in (("q_norm", q), ("k_norm", k)))
    width = v.shape[1]
    reader = weight_of(model.get_submodule(site.reader)).cpu().float()[:, : site.units * width]
    W_o = reader.mT.reshape(site.units, width, site.outer)
    k, v = (x.repeat_interleave(site.group, dim=0) for x in (k, v))
    return HeadFactors(q, k, v, W_o)


def projection_rows(model: PreTrainedModel, site: Site) -> tuple[Tensor, Tensor, Tensor]:
    """W_q, W_k and W_v of a block as heads × rows × hidden size; key/value heads once each."""
    q, k, v = (
        weight_of(model.get_submodule(writer.module)).cpu().float()[own_rows(site, writer)] for writer in site.writers
    )
    return q, k, v


def _gained(attention: nn.Module, name: str, W: Tensor, from_one: bool) -> Tensor:
    weight = getattr(getattr(attention, name, None), "weight", None)
    if not isinstance(weight, torch.Tensor) or len(weight) != W.shape[1]:
        return W
    gain = weight.detach().cpu().float() + from_one
    return W * gain[:, None]

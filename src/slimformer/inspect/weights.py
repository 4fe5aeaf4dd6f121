"""Spectra and magnitudes of a block's weights: the products a head acts by, and the feed-forward matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from transformers import PreTrainedModel

from slimformer.inspect.heads import HeadFactors, head_factors, projection_rows
from slimformer.linalg.spectra import product_values, singular_values
from slimformer.linalg.symmetry import SymmetryErrors, symmetry_errors
from slimformer.models import Architecture
from slimformer.models.architecture import NEURONS, weight_of
from slimformer.models.ranks import heads_of

PIXELS = 48  # a side of a map of W_qk: a matrix of any width becomes a picture of this size


@dataclass(frozen=True)
class BlockWeights:
    """What one block's weights are like; values are singular values, largest first."""

    block: int
    qk: Float[Tensor, "h r"]  # of W_qᵀ W_k, head by head
    vo: Float[Tensor, "h d"]  # of W_oᵀ W_v
    ffn: dict[str, Float[Tensor, " k"]]  # of each feed-forward matrix, by its name
    shapes: dict[str, tuple[int, int]]  # of the same
    neurons: Float[Tensor, " f"]  # ‖what writes it‖ · ‖what reads it‖
    rms: dict[str, float]  # root mean square of every matrix
    symmetry: SymmetryErrors
    kv_heads: int  # heads of keys and values; every query head has a spectrum, shared keys and values are stored once


def block_weights(model: PreTrainedModel, architecture: Architecture) -> Iterator[BlockWeights]:
    """One block after the other. Cost O(h D d² + D² F) each; nothing is run."""
    for i in range(architecture.n_blocks):
        factors = head_factors(model, architecture, i)
        matrices = _feed_forward(model, architecture, i)
        values = {name: singular_values(W) for name, W in matrices.items()}
        yield BlockWeights(
            i,
            product_values(factors.W_q, factors.W_k),
            product_values(factors.W_o, factors.W_v),
            values,
            {name: (W.shape[0], W.shape[1]) for name, W in matrices.items()},
            _neurons(matrices),
            _magnitudes(model, architecture, i, factors, matrices),
            symmetry_errors(factors.W_q, factors.W_k),
            heads_of(architecture, i).kv_heads,
        )


def score_map(model: PreTrainedModel, architecture: Architecture, i: int) -> Float[Tensor, "p p"]:
    """Mean over the heads of block i of |W_qᵀ W_k|, pooled to a picture. Cost O(h d D²)."""
    factors = head_factors(model, architecture, i)
    h, _, D = factors.W_q.shape
    total = torch.zeros(D, D, device=factors.W_q.device)
    for Q, K in zip(factors.W_q, factors.W_k, strict=True):
        total += (Q.mT @ K).abs()
    side = min(PIXELS, D)
    return adaptive_avg_pool2d(total[None] / max(1, h), (side, side))[0]


@cache
def gaussian_product(rank: int, width: int) -> Float[Tensor, " r"]:
    """σ of AᵀB for Gaussian A and B of `rank` × `width`, one draw: what a head looks like that learned nothing."""
    generator = torch.Generator().manual_seed(0)
    A, B = torch.randn(2, rank, width, generator=generator, dtype=torch.float64).unbind()
    return product_values(A, B)


@cache
def gaussian_matrix(rows: int, columns: int) -> Float[Tensor, " k"]:
    """σ of a Gaussian matrix, one draw (Marchenko & Pastur, 1967, say what it tends to)."""
    generator = torch.Generator().manual_seed(0)
    return singular_values(torch.randn(rows, columns, generator=generator, dtype=torch.float64))


def _feed_forward(model: PreTrainedModel, architecture: Architecture, i: int) -> dict[str, Tensor]:
    site = architecture.blocks[i].one(NEURONS)
    if site.fixed:  # of what stands in for the part, the map that writes
        return {"down": weight_of(model.get_submodule(site.reader)).cpu().float()}
    paths = [*(writer.module for writer in site.writers), site.reader]
    names = (*(("gate", "up") if site.gated else ("up",)), "down")
    return {n: weight_of(model.get_submodule(path)).cpu().float() for n, path in zip(names, paths, strict=True)}


def _neurons(matrices: dict[str, Tensor]) -> Tensor:
    worth = matrices["down"].double().norm(dim=0)
    for name, W in matrices.items():
        worth = worth * W.double().norm(dim=1) if name != "down" else worth
    return worth


def _magnitudes(
    model: PreTrainedModel, architecture: Architecture, i: int, factors: HeadFactors, matrices: dict[str, Tensor]
) -> dict[str, float]:
    site = heads_of(architecture, i)
    q, k, v = (factors.W_q, factors.W_k, factors.W_v) if site.fixed else projection_rows(model, site)
    every = {"query": q, "key": k, "value": v, "out": factors.W_o, **matrices}
    return {name: float(W.double().square().mean().sqrt()) if W.numel() else 0.0 for name, W in every.items()}

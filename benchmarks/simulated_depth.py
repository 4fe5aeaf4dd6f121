"""Fewer blocks: dropped (ShortGPT), or a run of them replaced by one linear map that costs nothing (ReplaceMe).

ShortGPT drops the blocks with the least Block Influence, 1 − E cos(x_i, x_{i+1}).

ReplaceMe drops a run of n blocks after block i, where the stream turns least from the one end to the other. With M
what the feed-forward part of block i adds to the stream, Y the stream it is added to, and L the stream after the run,

    T = argmin ‖M T + Y − L‖² + λ ‖T‖²,     W_down ← Tᵀ W_down,     b_down ← Tᵀ b_down (+ the mean error, where
                                                                    there is a bias to take it),

so the map is free. λ is chosen on the select split. Both are as coarse as a block: the budget is met from below.

References: Men et al., ShortGPT: layers in large language models are more redundant than you expect (2024);
Shopkhoev et al., ReplaceMe: network simplification via depth pruning and transformer block linearization (2025).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from copy import deepcopy
from functools import cache

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from simulated_evidence import Evidence, NotOffered, Smaller, listening, settings
from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture, describe
from slimformer.models.architecture import has_bias, weight_of
from slimformer.models.walk import real_rows
from slimformer.plan.cost import block_cost

RIDGES = (1e-5, 1e-3, 1e-1)  # λ over the mean diagonal of MᵀM


def shortgpt(evidence: Evidence, budget: float) -> Smaller:
    """Drop the blocks of least influence. Cost: one forward pass, for all budgets."""
    gone = evidence.influence.argsort(stable=True)[: blocks_to_drop(evidence.architecture, budget)].tolist()
    return _without(evidence, deepcopy(evidence.given.model), gone)


def replaceme(evidence: Evidence, budget: float) -> Smaller:
    """Drop the run of blocks over which the stream turns least, and let a linear map stand for it.

    Cost: two forward passes and 4 D² a token for every length of a run, for all budgets together.
    """
    model, architecture = evidence.given.model, evidence.architecture
    n = blocks_to_drop(architecture, budget)
    if not n:
        return _without(evidence, deepcopy(model), [])
    i = block_before_run(evidence.cosines, n)
    bias = has_bias(_down(model, architecture, i))

    def replaced(ridge: float) -> Smaller:
        small = deepcopy(model)
        merge(_down(small, architecture, i), *linear_map(_run_moments(evidence)[n], ridge=ridge, bias=bias))
        return _without(evidence, small, range(i + 1, i + 1 + n))

    return evidence.best(settings(replaced, RIDGES))


def blocks_to_drop(architecture: Architecture, budget: float) -> int:
    """How many blocks, all of one size, must go so that the others fit the budget."""
    kept = math.floor(budget * architecture.n_blocks + 1e-9)
    if not kept:
        raise NotOffered(f"a budget of {budget:g} leaves none of {architecture.n_blocks} blocks")
    return architecture.n_blocks - kept


def block_before_run(cosines: Tensor, n: int) -> int:
    """The block i after which n blocks turn the stream least: argmax E cos(after i, after i + n). Block 0 stays."""
    return int(cosines.diagonal(n)[1:].argmax())


def linear_map(joint: Moments, *, ridge: float, bias: bool) -> tuple[Tensor, Tensor]:
    """T and c of M T + c ≈ R from moments of the rows [M, R]; c = 0 without a bias to take it."""
    D = joint.width // 2
    C = joint.second(centred=bias)
    T = torch.linalg.solve(damped(C[:D, :D], ridge), C[:D, D:])
    c = joint.mean[D:] - joint.mean[:D] @ T
    return T, c if bias else torch.zeros_like(c)


@torch.no_grad()
def merge(down: nn.Module, T: Tensor, c: Tensor) -> None:
    """Let a linear layer write M T + c in place of M: W ← Tᵀ W, b ← Tᵀ b + c."""
    W = weight_of(down)
    W.copy_(T.mT @ W.double())
    if has_bias(down):
        down.bias.copy_(T.mT @ down.bias.double() + c)


@cache  # all lengths of a run in one pass, since budgets are asked for one by one
def _run_moments(evidence: Evidence) -> dict[int, Moments]:
    """For every length n of a run, moments of [M, L − Y] at the place where it would be replaced."""
    architecture, model = evidence.architecture, evidence.given.model
    starts = {n: block_before_run(evidence.cosines, n) for n in range(1, architecture.n_blocks)}
    downs = {i: architecture.blocks[i].neurons[0].reader for i in starts.values()}
    moments = {n: Moments.zero(2 * architecture.hidden) for n in starts}
    with listening(model, downs.values()) as heard:
        for batch, states in evidence.walks():
            streams = [real_rows(state, batch.mask) for state in states]
            for n, i in starts.items():
                M = real_rows(heard[downs[i]][1], batch.mask)
                moments[n] += Moments.of(torch.cat([M, streams[i + 1 + n] - (streams[i + 1] - M)], 1))
    return moments


def _down(model: PreTrainedModel, architecture: Architecture, i: int) -> nn.Module:
    return model.get_submodule(architecture.blocks[i].neurons[0].reader)


def _without(evidence: Evidence, model: PreTrainedModel, gone: Collection[int]) -> Smaller:
    """`model` after some of its blocks are dropped, and what it costs then."""
    drop_blocks(model, evidence.architecture, gone)
    cost = block_cost(describe(model), evidence.given.seq_len)
    return evidence.smaller(model, cost, {f"blocks.{i}": 0 for i in sorted(gone)})


def drop_blocks(model: PreTrainedModel, architecture: Architecture, gone: Collection[int]) -> None:
    """Drop blocks in place. Those left are counted anew, which is how they find their keys and values."""
    (stack,) = architecture.stacks
    kept = [model.get_submodule(block.path) for block in stack.blocks if block.index not in gone]
    model.set_submodule(stack.path, nn.ModuleList(kept))
    for i, block in enumerate(kept):
        for module in block.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = i
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [kind for i, kind in enumerate(model.config.layer_types) if i not in gone]
    model.config.num_hidden_layers = len(kept)

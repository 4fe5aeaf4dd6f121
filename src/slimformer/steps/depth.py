"""Step `depth`: whole blocks go, and the writer before each run of them takes over what it linearly can.

The result is a plain checkpoint with fewer blocks. Runs are chosen by the relative error of the stream after them, on
the select split; maps are fitted on the fit split (`decompose.depth`). Where norms come after what is written
(post-norm encoders) no map can be absorbed, so there blocks can only be dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.distributed import lead_only
from slimformer.calibrate.gather import Data
from slimformer.calibrate.text import Batch
from slimformer.decompose.depth import (
    Map,
    Rows,
    best_runs,
    cosine,
    identity,
    least_squares,
    mean_cosine,
    relative_error,
)
from slimformer.decompose.depth import Run as BlockRun
from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import Architecture, describe
from slimformer.models.architecture import NEURONS, fingerprint
from slimformer.models.description import is_pre_norm
from slimformer.models.hooks import listening
from slimformer.models.walk import real_rows, rehearse, through
from slimformer.nn.replaced import require_uncut
from slimformer.plan import Budget, Edit, Plan
from slimformer.plan.asked import MEASURES
from slimformer.plan.budget import budget_of
from slimformer.plan.cost import block_cost
from slimformer.rewrite.bypass import Reading
from slimformer.rewrite.correct import Correction
from slimformer.rewrite.depth import absorb, drop_blocks
from slimformer.rewrite.surgery import round_weights
from slimformer.run import Run
from slimformer.steps.step import Step

RIDGE = 1e-3  # written into the plan; maps of runs have ridges of their own
CHOOSING = 4096  # tokens on which runs are compared; those chosen are fitted on all that are kept
BYTES = {"fit": 1.5e9, "select": 0.5e9}  # streams after every block are kept of as many tokens as have room here


class Depth(Step):
    """Drop as many whole blocks as the budget wants; what is linear in a run of them is kept where it costs nothing."""

    by: Literal["cosine", "linear", "drop"] = Field(
        default="cosine", description="fit the direction of the stream after the run, the stream itself, or nothing"
    )
    macs: float | None = Field(default=None, description="fraction of the block MACs to keep")
    params: float | None = Field(default=None, description="or: fraction of the blocks' parameters to keep")
    latency: float | None = Field(default=None, description="or: fraction of the blocks' latency to keep")

    flags: ClassVar[dict[str, str]] = {name: name for name in MEASURES}

    @property
    def budget(self) -> Budget:
        return budget_of(**{name: getattr(self, name) for name in MEASURES})

    def require_complete(self) -> None:
        """One budget, and a fraction."""
        assert self.budget

    def require_possible(self, run: Run) -> None:
        """Refuse a budget that leaves no block."""
        require_uncut(run.dense)
        blocks_to_drop(describe(run.dense), self.budget)

    def preview(self, run: Run) -> Plan:
        """Which blocks go follows from the data; how many stay does not."""
        raise UnknownMethod(
            f"the recipe {self.name!r} drops whole blocks, and which ones follows from the data; use it without "
            f"{option('dry_run', True)}"
        )

    def run(self, run: Run) -> Run:
        """Fit the maps, drop the blocks."""
        lead_only()
        assert run.data is not None
        with run.timed("depth"):
            small, plan, done = make_shallow(run.dense, run.data, self, progress=run.progress)
            round_weights(small, run.loaded.dtype)
        return replace(run, model=small, plan=plan, corrections=tuple(done))


@torch.no_grad()
def make_shallow(
    model: PreTrainedModel, data: Data, settings: Depth, *, progress: Progress = silent
) -> tuple[PreTrainedModel, Plan, list[Correction]]:
    """A copy with as many blocks as the budget allows, the plan, and what the map of every run did to the stream.

    Cost: one forward pass over a few thousand tokens, and one regression of width D for every run that could go.
    """
    model.eval()
    architecture = describe(model)
    gone = blocks_to_drop(architecture, settings.budget)
    linear = settings.by != "drop"
    neurons = [block.one(NEURONS) for block in architecture.blocks]
    if linear and not is_pre_norm(model, architecture.layout(neurons[0]), neurons[0].part):
        raise UnknownMethod(
            f"in {architecture.model_type} a norm comes after what a block writes, so no linear map can stand for "
            "blocks that go; say depth.by=drop"
        )
    if linear and not neurons[0].part.adds:
        raise UnknownMethod(
            f"in {architecture.model_type} what a block writes is scaled or normed before it is added, or added beside "
            "its attention, so no linear map can stand for blocks that go; say depth.by=drop"
        )
    _require_no_scale_by_depth(model)
    streams = {split: _walk(model, architecture, data.splits[split], _room(architecture, split)) for split in BYTES}
    bias = neurons[0].reader_bias
    maps: dict[BlockRun, Map] = {}
    progress("depth", 0, architecture.n_blocks)
    for i in range(architecture.n_blocks):
        for n in range(1, min(gone, architecture.n_blocks - i - 1) + 1):
            fit, held = (streams[split].rows(i, n, CHOOSING) for split in BYTES)
            maps[i, n] = least_squares(fit, held, bias=bias) if linear else identity(architecture.hidden)
        progress("depth", i + 1, architecture.n_blocks)
    errors = {run: relative_error(streams["select"].rows(*run, CHOOSING), fitted) for run, fitted in maps.items()}
    small, done = deepcopy(model), []
    runs = best_runs(errors, architecture.n_blocks, gone)
    for run in runs:
        fit, held = (streams[split].rows(*run) for split in BYTES)
        fitted = least_squares(fit, held, bias=bias) if linear else maps[run]
        fitted = cosine(fit, held, fitted, bias=bias) if settings.by == "cosine" else fitted
        if linear:
            absorb(small, neurons[run[0]], fitted)
        before = relative_error(held, identity(architecture.hidden))
        name = f"blocks.{run[0]} for {run[1]} after it"
        after, along = relative_error(held, fitted), mean_cosine(held, fitted)
        done.append(Correction(name, 1.0 if linear else 0.0, None, before, after, along))
    dropped = [i + j for i, n in runs for j in range(1, n + 1)]
    drop_blocks(small, architecture, dropped)
    return small, _plan(model, describe(small), settings, data.seq_len, dropped), done


def blocks_to_drop(architecture: Architecture, budget: Budget) -> int:
    """How many blocks must go; all are of one size, so of whatever a fraction is asked, so many blocks stay."""
    if len(architecture.stacks) > 1:
        raise UnknownMethod(
            f"{architecture.model_type} has several stacks of blocks; the step depth knows models of one"
        )
    if architecture.n_layers > architecture.n_blocks:
        raise UnknownMethod(f"{architecture.model_type} runs one block many times, and the step depth drops blocks")
    if not architecture.blocks_alike or len({site.beside for site in architecture.neurons}) > 1:
        raise BudgetOutOfReach("the blocks of this model differ in size; drop blocks of the dense model first")
    keep = math.floor(budget.fraction * architecture.n_blocks + 1e-9)
    if not keep:
        raise BudgetOutOfReach(
            f"{budget} leaves none of {architecture.n_blocks} blocks: the minimum for this model is "
            f"{math.ceil(1000 / architecture.n_blocks) / 1000:.3f}"
        )
    return architecture.n_blocks - keep


class _Streams:
    """The stream before and after every block, and what its feed-forward part added, at the same tokens."""

    def __init__(self, states: Sequence[Tensor], added: Sequence[Tensor]) -> None:
        self.states, self.added = states, added

    def rows(self, i: int, n: int, limit: int | None = None) -> Rows:
        """What a map at block i needs to stand for the n blocks after it, of the first tokens or of all."""
        m = self.added[i][:limit].double()
        return Rows(self.states[i + 1][:limit].double() - m, m, self.states[i + 1 + n][:limit].double())


def _room(architecture: Architecture, split: str) -> int:
    """Tokens whose streams, and what is added to them, fit into the bytes of a split."""
    return int(BYTES[split] / (4 * architecture.hidden * (2 * architecture.n_blocks + 1)))


def _require_no_scale_by_depth(model: PreTrainedModel) -> None:
    if getattr(model.config, "scale_attn_by_inverse_layer_idx", False):
        raise UnknownMethod(
            "attention of this model is scaled by the number of its block (scale_attn_by_inverse_layer_idx), so blocks "
            "cannot be numbered anew; use a recipe that cuts widths"
        )


def _walk(model: PreTrainedModel, architecture: Architecture, batches: Sequence[Batch], tokens: int) -> _Streams:
    states: list[list[Tensor]] = [[] for _ in range(architecture.n_blocks + 1)]
    added: list[list[Tensor]] = [[] for _ in range(architecture.n_blocks)]
    count = 0
    for batch in batches:
        if count >= tokens:
            break
        (stage,) = rehearse(model, architecture, [batch])
        states[0].append(real_rows(stage.state, stage.rows).cpu())
        for i, block in enumerate(architecture.blocks):
            heard: list[Tensor] = []
            with listening(model, outputs={Reading(block.one(NEURONS)).exit: heard.append}):
                stage.state = through(model.get_submodule(block.path), stage.state, stage.calls[i])
            states[i + 1].append(real_rows(stage.state, stage.rows).cpu())
            added[i].append(real_rows(heard[0], stage.rows).cpu())
        count += len(states[0][-1])
    return _Streams([torch.cat(parts)[:tokens] for parts in states], [torch.cat(parts)[:tokens] for parts in added])


def _plan(model: PreTrainedModel, after: Architecture, settings: Depth, seq_len: int, dropped: Sequence[int]) -> Plan:
    """Which blocks stay, in the words of a plan: of the others nothing is kept."""
    before, budget = describe(model), settings.budget
    dense, small = block_cost(before, seq_len), block_cost(after, seq_len)
    edits = tuple(
        Edit(site.name, "depth", 0, site.units, 0)
        if site.block in dropped
        else Edit(site.name, "depth", site.units, site.units, site.units // site.group)
        for site in before
    )
    return Plan(
        recipe=settings.name, budget=budget.fraction, by=budget.by, macs=small.macs / dense.macs,
        params=small.params / dense.params, seq_len=seq_len, format="plain", ridge=RIDGE,
        absorb_mean=True, fingerprint=fingerprint(model), edits=edits,
    )  # fmt: skip

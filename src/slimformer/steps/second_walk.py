"""The second walk through a model that is not in memory: dense block and cut copy side by side, then a shard.

Three streams go on. The dense and the small one of `rewrite.correct`, on all splits that are needed, and that of the
model before correction on a few tokens, because correction must not lose at the outputs: where it does, the readers
before it, which were written beside, are put back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.collect import Residence, Stage, ending_in, rehearse, state_name, through
from slimformer.calibrate.store import Statistics
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.shards import block_tensors, read_block, restore_shapes, write_block, write_tensors
from slimformer.decompose import Curve
from slimformer.messages.progress import Progress
from slimformer.models.architecture import base_path, reads_windows
from slimformer.models.outputs import harm
from slimformer.models.stream import Skeleton, put, release
from slimformer.plan import Plan
from slimformer.rewrite.apply import cut_block
from slimformer.rewrite.correct import Correction, Pair, correct_block
from slimformer.rewrite.probe import short_batches
from slimformer.rewrite.sizes import keep_attributes_true
from slimformer.rewrite.surgery import round_weights
from slimformer.steps.memory import give_back, residence
from slimformer.steps.refine import TOKENS, refit_final_norm
from slimformer.steps.streaming_job import Job, require_whole


@dataclass(frozen=True)
class Walked:
    """A skeleton of the smaller model whose blocks are in shards, and both streams at the end of the report split."""

    small: PreTrainedModel
    corrections: list[Correction]
    report: list[tuple[Batch, Pair]]


@dataclass
class _Trail:
    """One batch in the model before correction."""

    stage: Stage
    state: Tensor


@dataclass(frozen=True)
class _Walk:
    skeleton: Skeleton
    small: PreTrainedModel
    job: Job
    plan: Plan
    curves: Mapping[str, Curve]
    statistics: Statistics
    residence: Residence
    fitted: list[Pair]  # fit and select; none without correction
    report: list[Pair]
    trails: list[_Trail] = field(default_factory=list)


@torch.no_grad()
def second_walk(
    skeleton: Skeleton, job: Job, plan: Plan, curves: Mapping[str, Curve], statistics: Statistics,
    splits: Mapping[str, Sequence[Batch]], *, refined: bool, progress: Progress,
) -> Walked:  # fmt: skip
    """Cut and correct every block and write it to its shard; goes on at the first block that has none."""
    architecture, n_blocks = skeleton.architecture, skeleton.architecture.n_blocks
    first, corrected = job.done("rewrite"), refined and plan.macs < 1
    walk = _start(skeleton, job, plan, curves, statistics, splits, corrected=corrected, first=first)
    progress("cut and correct", first, n_blocks)
    for i in range(first, n_blocks):
        with skeleton.resident(i):
            done = _through_block(walk, i, corrected=corrected)
        release(walk.small, architecture, i)
        give_back()
        job.shelf.flush(i + 1)
        job.finish("rewrite", i + 1, [asdict(each) for each in done])
        progress("cut and correct", i + 1, n_blocks)
    corrections = [Correction(**each) for block in job.notes("rewrite") for each in block]
    if corrected:
        corrections = _finish(walk, splits, corrections)
    return Walked(walk.small, corrections, list(zip(splits["report"], walk.report, strict=True)))


def _start(
    skeleton: Skeleton, job: Job, plan: Plan, curves: Mapping[str, Curve], statistics: Statistics,
    splits: Mapping[str, Sequence[Batch]], *, corrected: bool, first: int,
) -> _Walk:  # fmt: skip
    """Streams before the block `first`, and a small skeleton with the shapes of what is finished."""
    dense, architecture, shelf = skeleton.loaded.model, skeleton.architecture, job.shelf
    there = residence(skeleton, shelf)
    small = skeleton.twin()
    require_whole(*(where(i) for i in range(first) for where in (job.shard, *([job.nested] if corrected else []))))
    for i in range(first):
        restore_shapes(job.shard(i), small, architecture, i)
    names = ("fit", "select", "report") if corrected else ("report",)
    stages = {split: list(rehearse(dense, architecture, splits[split], split, there)) for split in names}
    pairs = {split: [Pair(s, s.state, s.state) for s in found] for split, found in stages.items()}
    short = _short(dense, skeleton, splits["select"]) if corrected else []
    trails = [_Trail(stage, stage.state) for stage in rehearse(dense, architecture, short, "before", there)]
    if first:
        for pair in (pair for found in pairs.values() for pair in found):
            pair.dense = shelf.recall(state_name(pair.stage, "dense", first))
            pair.small = shelf.recall(state_name(pair.stage, "small", first))
        for trail in trails:
            trail.state = shelf.recall(state_name(trail.stage, "nested", first))
    fitted = [*pairs["fit"], *pairs["select"]] if corrected else []
    return _Walk(skeleton, small, job, plan, curves, statistics, there, fitted, pairs["report"], trails)


def _short(dense: PreTrainedModel, skeleton: Skeleton, select: Sequence[Batch]) -> list[Batch]:
    return short_batches(select, windows=reads_windows(dense, skeleton.architecture.family), tokens=TOKENS)


def _through_block(walk: _Walk, i: int, *, corrected: bool) -> list[Correction]:
    """Cut block i, correct it, write it, and let every stream through."""
    skeleton, small = walk.skeleton, walk.small
    dense, architecture = skeleton.loaded.model, skeleton.architecture
    skeleton.fill(small, i)
    done = _cut_and_correct(walk, i, corrected=corrected)
    path = f"{architecture.blocks}.{i}"
    round_weights(small.get_submodule(path), skeleton.loaded.dtype)
    for pair in walk.report:
        for stream, model in (("dense", dense), ("small", small)):
            after = through(model.get_submodule(path), getattr(pair, stream), pair.stage.calls[i])
            setattr(pair, stream, walk.residence.keep(state_name(pair.stage, stream, i + 1), after))
    write_block(walk.job.shard(i), small, architecture, i, skeleton.loaded.dtype)
    return done


def _cut_and_correct(walk: _Walk, i: int, *, corrected: bool) -> list[Correction]:
    """Readers before correction are written beside, and go their own way on a few tokens."""
    skeleton, small = walk.skeleton, walk.small
    dense, architecture = skeleton.loaded.model, skeleton.architecture
    moments = walk.statistics.block(i, ["fit"])
    cut_block(small, dense, architecture, i, walk.plan, walk.curves, lambda _i: moments)
    keep_attributes_true(small, architecture)
    if not corrected:
        return []
    write_tensors(walk.job.nested(i), _readers(walk, i), skeleton.loaded.dtype)
    block = small.get_submodule(f"{architecture.blocks}.{i}")
    for trail in walk.trails:
        after = through(block, trail.state, trail.stage.calls[i])
        trail.state = walk.residence.keep(state_name(trail.stage, "nested", i + 1), after)
    return correct_block(small, dense, architecture, i, walk.plan, walk.curves, moments, walk.fitted, walk.residence)


def _readers(walk: _Walk, i: int) -> dict[str, Tensor]:
    """The weights of block i that correction may change."""
    readers = [f"{site.reader}." for site in walk.skeleton.architecture.of_block(i)]
    tensors = block_tensors(walk.small, walk.skeleton.architecture, i)
    return {name: tensor for name, tensor in tensors.items() if name.startswith(tuple(readers))}


class _Ends:
    """How far two streams are apart at the outputs, on some of the select split."""

    def __init__(self, walk: _Walk, batches: Sequence[Batch], states: Sequence[Tensor]) -> None:
        select = [pair.dense for pair in walk.fitted if pair.stage.split == "select"]
        self.model, self.architecture = walk.skeleton.loaded.model, walk.skeleton.architecture
        self.batches, self.states = batches, [state[:, : _length(b, state)] for b, state in _zip(batches, states)]
        self.dense = [state[:, : _length(b, state)] for b, state in _zip(batches, select)]

    def harm(self, small: PreTrainedModel) -> float:
        total = count = 0.0
        for batch, p, q in zip(self.batches, self.dense, self.states, strict=True):
            with ending_in(self.model, self.architecture, [(batch, p)]):
                dense = self.model(**batch.inputs)
            with ending_in(small, self.architecture, [(batch, q)]):
                moved, n = harm(dense, small(**batch.inputs), batch.mask)
            total, count = total + moved * n, count + n
        return total / max(1.0, count)


def _zip(batches: Sequence[Batch], states: Sequence[Tensor]) -> list[tuple[Batch, Tensor]]:
    """The short batches are the beginnings of the first ones."""
    return list(zip(batches, states, strict=False))


def _length(batch: Batch, state: Tensor) -> int:
    ids = batch.inputs.get("input_ids")
    return state.shape[1] if ids is None else ids.shape[1]


def _finish(walk: _Walk, splits: Mapping[str, Sequence[Batch]], done: list[Correction]) -> list[Correction]:
    """Refit the last norm; where all of it did harm at the outputs, go back to the model before correction."""
    dense, small = walk.skeleton.loaded.model, walk.small
    batches = _short(dense, walk.skeleton, splits["select"])
    before = _Ends(walk, batches, [trail.state for trail in walk.trails]).harm(small)
    ends = _Ends(walk, batches, [pair.small for pair in walk.fitted if pair.stage.split == "select"])
    found = refit_final_norm(small, dense, walk.fitted, ends)
    if ends.harm(small) > before:
        _go_back(walk)
        return [Correction("all", 0.0, None, before, before)]
    norm = _final_norm(walk)
    if norm:
        round_weights(small.get_submodule(norm), walk.skeleton.loaded.dtype)
    return [*done, *([found] if found else [])]


def _final_norm(walk: _Walk) -> str | None:
    """Where the small model has a last norm of its own."""
    model, path = walk.small, walk.skeleton.architecture.family.final_norm
    full = base_path(model) + path if path else None
    return full if full and full in dict(model.named_modules()) else None


def _go_back(walk: _Walk) -> None:
    """Shards with the readers before correction, the norm as it was, and the report stream once more."""
    skeleton, small = walk.skeleton, walk.small
    architecture, dtype = skeleton.architecture, skeleton.loaded.dtype
    if (norm := _final_norm(walk)) is not None:
        for name, parameter in skeleton.loaded.model.get_submodule(norm).named_parameters():
            put(small, f"{norm}.{name}", parameter.detach())
    for pair in walk.report:
        pair.small = pair.stage.state
    for i in range(architecture.n_blocks):
        read_block(walk.job.shard(i), small, skeleton.dtype)
        read_block(walk.job.nested(i), small, skeleton.dtype)
        block = small.get_submodule(f"{architecture.blocks}.{i}")
        for pair in walk.report:
            after = through(block, pair.small, pair.stage.calls[i])
            pair.small = walk.residence.keep(state_name(pair.stage, "small", i + 1), after)
        write_block(walk.job.shard(i), small, architecture, i, dtype)
        release(small, architecture, i)

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

from slimformer.calibrate.store import Statistics
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.shards import block_tensors, read_block, restore_shapes, write_block, write_tensors
from slimformer.decompose import Curve
from slimformer.messages.progress import Progress
from slimformer.models.architecture import base_path, reads_windows
from slimformer.models.outputs import harm
from slimformer.models.stream import Skeleton, put, release
from slimformer.models.walk import Stream, Visit, ending_in, rehearse
from slimformer.plan import Plan
from slimformer.rewrite.apply import Cut, cut_block
from slimformer.rewrite.correct import Correction, Pair, correct_readers
from slimformer.rewrite.probe import short_batches
from slimformer.rewrite.refine import TOKENS, refit_final_norm
from slimformer.rewrite.sizes import keep_attributes_true
from slimformer.rewrite.surgery import round_weights
from slimformer.steps.memory import give_back
from slimformer.steps.on_disk import OnDisk
from slimformer.steps.streaming_job import Job, require_whole


@dataclass(frozen=True)
class Walked:
    """A skeleton of the smaller model whose blocks are in shards, and both streams at the end of the report split."""

    small: PreTrainedModel
    corrections: list[Correction]
    report: list[tuple[Batch, Pair]]


@dataclass(frozen=True)
class _Walk:
    skeleton: Skeleton
    small: PreTrainedModel
    job: Job
    plan: Plan
    curves: Mapping[str, Curve]
    statistics: Statistics
    residence: OnDisk
    fitted: list[Pair]  # fit and select; none without correction
    report: list[Pair]
    batches: Sequence[Batch]  # of the report
    trails: list[Stream] = field(default_factory=list)  # in the model before correction


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
        walk.residence.finish("rewrite", [asdict(each) for each in done])
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
    dense, architecture = skeleton.loaded.model, skeleton.architecture
    there = OnDisk(skeleton, job, job.states)
    small = skeleton.twin()
    require_whole(*(where(i) for i in range(first) for where in (job.shard, *([job.nested] if corrected else []))))
    for i in range(first):
        restore_shapes(job.shard(i), small, architecture, i)
    names = ("fit", "select", "report") if corrected else ("report",)
    stages = {split: list(rehearse(dense, architecture, splits[split], split, there)) for split in names}
    pairs = {split: [Pair(s.fork("dense"), s.fork("small")) for s in found] for split, found in stages.items()}
    short = _short(dense, skeleton, splits["select"]) if corrected else []
    trails = [stream.fork("nested") for stream in rehearse(dense, architecture, short, "before", there)]
    if first:
        both = (stream for found in pairs.values() for pair in found for stream in (pair.teacher, pair.student))
        for stream in (*both, *trails):
            stream.state = there.recall(stream.label(first))
    fitted = [*pairs["fit"], *pairs["select"]] if corrected else []
    return _Walk(
        skeleton, small, job, plan, curves, statistics, there, fitted, pairs["report"], splits["report"], trails
    )


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
        Visit(dense, architecture, i, walk.residence).advance(pair.teacher)
        Visit(small, architecture, i, walk.residence).advance(pair.student)
    write_block(walk.job.shard(i), small, architecture, i, skeleton.loaded.dtype)
    return done


def _cut_and_correct(walk: _Walk, i: int, *, corrected: bool) -> list[Correction]:
    """Readers before correction are written beside, and go their own way on a few tokens."""
    skeleton, small = walk.skeleton, walk.small
    dense, architecture = skeleton.loaded.model, skeleton.architecture
    moments = walk.statistics.block(i, ["fit"])
    student, teacher = (Visit(model, architecture, i, walk.residence) for model in (small, dense))
    cut = Cut(walk.plan, walk.curves, lambda _i: moments)
    cut_block(student, teacher, cut)
    keep_attributes_true(small, architecture)
    if not corrected:
        return []
    write_tensors(walk.job.nested(i), _readers(walk, i), skeleton.loaded.dtype)
    for trail in walk.trails:
        student.advance(trail)
    done = correct_readers(student, teacher, cut, walk.fitted)
    for pair in walk.fitted:
        student.advance(pair.student)
    return done


def _readers(walk: _Walk, i: int) -> dict[str, Tensor]:
    """The weights of block i that correction may change."""
    readers = [f"{site.reader}." for site in walk.skeleton.architecture.of_block(i)]
    tensors = block_tensors(walk.small, walk.skeleton.architecture, i)
    return {name: tensor for name, tensor in tensors.items() if name.startswith(tuple(readers))}


class _Ends:
    """How far two streams are apart at the outputs, on some of the select split."""

    def __init__(self, walk: _Walk, batches: Sequence[Batch], states: Sequence[Tensor]) -> None:
        select = [pair.teacher.state for pair in walk.fitted if pair.teacher.split == "select"]
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
    ends = _Ends(walk, batches, [pair.student.state for pair in walk.fitted if pair.student.split == "select"])
    found = refit_final_norm(small, dense, walk.fitted, lambda: ends.harm(small))
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
    start = rehearse(skeleton.loaded.model, architecture, walk.batches, "report", walk.residence)
    for pair, stream in zip(walk.report, start, strict=True):
        pair.student.state = stream.state
    for i in range(architecture.n_blocks):
        read_block(walk.job.shard(i), small, skeleton.dtype)
        read_block(walk.job.nested(i), small, skeleton.dtype)
        for pair in walk.report:
            Visit(small, architecture, i, walk.residence).advance(pair.student)
        write_block(walk.job.shard(i), small, architecture, i, dtype)
        release(small, architecture, i)

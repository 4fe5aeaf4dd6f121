"""Sequential correction of a smaller model: every reader is refitted on what really reaches it.

Dense and small model are walked side by side, block by block: teacher and student. Of the teacher the streams before
and after each sublayer are kept for one block (tokens × hidden size), of the student what its readers are given (tokens
× width): each reader sees what the corrected ones before it send, and nothing before a reader is computed twice
(`rewrite.replay`). Up to the first block that was cut both are one model, and there is nothing to correct. The formulas
are in `decompose.sequential`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments
from slimformer.calibrate.text import Batch
from slimformer.decompose.low_rank import on_values
from slimformer.decompose.reduction import coordinates
from slimformer.decompose.sequential import sequential_change
from slimformer.linalg.moments import Moments
from slimformer.linalg.residuals import Residuals, ResidualSums
from slimformer.models import Site, describe
from slimformer.models.architecture import weight_of
from slimformer.models.hooks import Hook, listening
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import Stream, Visit, forward, real_rows, rehearse
from slimformer.plan import Plan
from slimformer.plan.curves import order_of
from slimformer.plan.ranks import attention_of
from slimformer.rewrite.apply import Cut
from slimformer.rewrite.bypass import Reading
from slimformer.rewrite.replay import Replay, is_inside, module_of, replay_of, replaying

RIDGE = 1e-3  # of experts, which no plan says one for


@dataclass(frozen=True)
class Correction:
    """What the correction of one reader did to the held-out mean squared error of the stream, and how it was chosen."""

    site: str
    beta: float
    rho: float | None  # none: left as it was
    before: float
    after: float
    cosine: float | None = None  # of the stream, where a direction was fitted (fewer blocks)


@dataclass(frozen=True)
class Pair:
    """The streams of one batch in both models."""

    teacher: Stream
    student: Stream

    @property
    def rows(self) -> Tensor | None:
        """Which positions are real."""
        return self.teacher.rows


@dataclass(frozen=True)
class Target:
    """What the teacher did at one sublayer, at real positions: the stream it added to, and what it added."""

    stream: Tensor
    added: Tensor


@dataclass(frozen=True)
class Corrected:
    """What was done, both streams after the last block, and the parameters as they were before they were changed."""

    corrections: list[Correction]
    pairs: list[Pair]
    uncorrected: dict[str, Tensor]


@torch.no_grad()
def correct(
    small: PreTrainedModel,
    dense: PreTrainedModel,
    cut: Cut[Plan],
    data: Mapping[str, Sequence[Batch]],
    *,
    residence: Residence = IN_MEMORY,
    progress: Callable[[int], None] = lambda _block: None,
) -> Corrected:
    """Correct the readers of `small` in place; fitted on `data["fit"]`, chosen on `data["select"]`.

    A walk that was stopped goes on at the first block that is not finished ("correct"). Cost: a forward pass of each
    model, one Gram matrix per width and its product with what is missing.
    """
    architecture, home = describe(dense), residence.of_copy
    notes = residence.notes("correct")
    alike = len(architecture.stacks) == 1 and not any(note["changed"] for note in notes)
    pairs = [
        Pair(stream.fork("dense"), stream.fork("small"))
        for split in ("fit", "select")
        for stream in rehearse(dense, architecture, data[split], split, residence)
    ]
    uncorrected = {name: residence.recall(_old(name)) for note in notes for name in note["changed"]}
    if notes:
        for stream in (stream for pair in pairs for stream in (pair.teacher, pair.student)):
            stream.state = residence.recall(stream.label(len(notes)))
    for visit in forward(dense, architecture, residence, first=len(notes)):
        with home.block(visit.i):
            student = Visit(small, architecture, visit.i, home)
            alike = alike and is_same_block(student, visit)
            if alike:
                note, old = _go_on_together(visit, pairs), dict[str, Tensor]()
            else:
                note, old = _correct_block(student, visit, cut, pairs)
                home.settle(visit.i)
        notes.append(note)
        residence.finish("correct", note)
        uncorrected |= old
        progress(visit.i)
    done = [Correction(**each) for note in notes for each in note["corrections"]]
    return Corrected(done, pairs, uncorrected)


def _old(name: str) -> str:
    """The name under which a parameter is kept as it was before correction."""
    return f"uncorrected.{name}"


def is_same_block(small: Visit, dense: Visit) -> bool:
    """Are all weights of the two blocks the same, bit by bit?"""
    a, b = (visit.block.state_dict() for visit in (small, dense))
    return a.keys() == b.keys() and all(a[name].shape == b[name].shape and torch.equal(a[name], b[name]) for name in a)


def _go_on_together(dense: Visit, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Let both streams of every pair through a block in which nothing was cut, nor in any before it."""
    for pair in pairs:
        dense.advance(pair.teacher)
        pair.student.state = dense.residence.keep(pair.student.label(dense.i + 1), pair.teacher.state)
    same = [Correction(site.name, 0.0, None, 0.0, 0.0) for site in dense.sites if not site.stays]
    return {"corrections": [asdict(each) for each in same], "changed": []}


def _correct_block(
    small: Visit, dense: Visit, cut: Cut[Plan], pairs: Sequence[Pair]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Correct the readers of a block in place and let both streams of every pair through it.

    Returned are a note of what was done, and the parameters that were changed as they were before.
    """
    before = dict(small.block.named_parameters(small.path))
    done, replays = correct_readers(small, dense, cut, pairs)
    for pair, known in zip(pairs, replays, strict=True):
        with replaying(small.model, known):
            small.advance(pair.student)
    now = dict(small.block.named_parameters(small.path))
    changed = [name for name, parameter in before.items() if now[name] is not parameter]
    old = {name: dense.residence.keep(_old(name), before[name].detach()) for name in changed}
    return {"corrections": [asdict(each) for each in done], "changed": changed}, old


def correct_readers(
    small: Visit, dense: Visit, cut: Cut[Plan], pairs: Sequence[Pair]
) -> tuple[list[Correction], list[list[Replay]]]:
    """Correct the readers of a block in place; the streams of the teacher go through it, those of the student stay.

    Returned are what was done, and for every pair what need not run again when the student goes through.
    """
    plan, of_block = cut.how, cut.moments(dense.i)
    targets = [_targets(dense, pair.teacher) for pair in pairs]
    replays: list[list[Replay]] = [[] for _ in pairs]
    done = []
    for site in dense.sites:
        if site.stays:
            continue
        size = plan.sizes[site.name]
        reading = Reading(site, size.rank)
        seen = _compare(small, reading, pairs, [target[site.name] for target in targets], replays)
        if reading.rank:
            J = coordinates(sorted(cut.curves[site.name].order[: size.units]), 1)
            kept = reading.moments(small.model, of_block.joint["fit"], J)
        else:
            kept = _kept(dense, site, of_block, cut)
        done.append(_correct(small.model, reading, seen, kept, ridge=plan.ridge))
    return done, replays


def correct_experts(small: Visit, dense: Visit, pairs: Sequence[Pair]) -> list[Correction]:
    """Correct the readers of the experts that are left in a block, in place, one after the other on what is sent to
    them now, and let both streams of every pair through the block."""
    targets = [_targets(dense, pair.teacher) for pair in pairs]
    layer = next(site.name for site in dense.sites if site.expert)
    replays: list[list[Replay]] = [[] for _ in pairs]
    done = []
    for site in (site for site in small.sites if site.expert):
        reading = Reading(site)
        seen = _compare(small, reading, pairs, [target[layer] for target in targets], replays)
        done.append(_correct(small.model, reading, seen, seen["fit"].x, ridge=RIDGE))
    for pair in pairs:
        small.advance(pair.student)
    return done


def _targets(dense: Visit, stream: Stream) -> dict[str, Target]:
    """Let a stream through a block of the teacher and note what its sublayers did."""
    dense.enter(stream)  # before anything is noted: the rehearsal of another stack runs its blocks, too
    before, after = dict[str, Tensor](), dict[str, Tensor]()
    dense.enter(stream)  # before anybody listens
    with listening(
        dense.model,
        inputs={site.entry: _note(before, site.entry) for site in dense.sites},
        outputs={exit: _note(after, exit) for exit in {Reading(site).exit for site in dense.sites}},
    ):
        dense.advance(stream)

    def rows(X: Tensor, site: Site, what: str) -> Tensor:
        return dense.residence.keep(f"{stream.name}.target.{site.part.name}.{what}", real_rows(X, stream.rows))

    of: dict[tuple[str, str], Target] = {}  # experts of a block have one
    for site in dense.sites:
        place = site.entry, Reading(site).exit
        if place not in of:
            of[place] = Target(rows(before[place[0]], site, "before"), rows(after[place[1]], site, "after"))
    return {site.name: of[site.entry, Reading(site).exit] for site in dense.sites}


class _Seen(Exception):
    """Raised once a sublayer has given its output: what follows in the block need not run."""


def _compare(
    small: Visit, reading: Reading, pairs: Sequence[Pair], targets: Sequence[Target], replays: Sequence[list[Replay]]
) -> dict[str, Residuals]:
    """What is missing in the student after the sublayer of a site, by split. What was seen is added to `replays`."""
    sums: dict[str, ResidualSums] = {}
    for pair, target, known in zip(pairs, targets, replays, strict=True):
        small.enter(pair.student)
        with replaying(small.model, known):
            seen, replay = _see(small, reading, pair.student)
        if replay is not None:
            known.append(replay)
        X = real_rows(reading.features(seen), pair.rows)
        stream, added = (real_rows(seen[name], pair.rows) for name in ("stream", "added"))
        missing = target.added - added
        before = target.stream - stream if reading.site.part.adds else 0
        sums.setdefault(pair.student.split, ResidualSums()).add(X, missing, missing + before)
    return {split: each.residuals() for split, each in sums.items()}


def _see(small: Visit, reading: Reading, stream: Stream) -> tuple[dict[str, Tensor], Replay | None]:
    """What the sublayer of a site reads and writes, and how to replay it, if it can be."""
    seen: dict[str, Any] = {}
    site, runs = reading.site, small.here.runs
    places = {"stream": site.entry, **reading.heard_at(small.model)}
    module = module_of(site) if runs == 1 and reading.exit == site.reader else ""
    last = {module if is_inside(module, site.reader) else reading.exit: runs}
    outputs = {module: "output"} if module else {}
    with (
        suppress(_Seen),
        listening(
            small.model,
            inputs={place: _note(seen, name) for name, place in places.items()},
            outputs={
                place: _note(seen, name, last=last.get(place, 0))
                for place, name in {**outputs, reading.exit: "added"}.items()
            },
        ),
    ):
        small.run(stream)
    if "output" not in seen:  # no such module, or one that holds the writers and is not called itself
        return seen, None
    replay = replay_of(site, seen["features"], seen["added"], seen["output"])
    name = f"{stream.name}.given.{site.part.name}"
    return seen, replay and replace(replay, given=small.residence.keep(name, replay.given))


def _note(seen: dict[str, Any], name: str, *, last: int = 0) -> Hook:
    """Note X, of several runs one after the other; with the `last` of so many runs, all has been seen."""
    runs: list[Tensor] = []

    def hook(X: Tensor) -> None:
        runs.append(X)
        seen[name] = torch.cat(runs) if len(runs) > 1 else X
        if len(runs) == last:
            raise _Seen

    return hook


def _kept(dense: Visit, site: Site, block: BlockMoments, cut: Cut[Plan]) -> Moments:
    """Moments, in the dense model, of the features the small one keeps: selected coordinates, or values turned."""
    plan, moments = cut.how, block.sites[site.name]["fit"]
    sizes = plan.sizes
    rank = sizes[values].units if (values := site.rank_name("vo")) in sizes else site.unit
    if site.kind == "attn.heads" and rank < site.unit:
        W_o = weight_of(dense.model.get_submodule(site.reader))
        return on_values(moments, attention_of(site, W_o, block, plan).values(rank).S, group=site.group)
    size = sizes[site.name]
    J = coordinates(sorted(order_of(cut.curves, site.name, size)[: size.units]), site.unit)
    return Moments(moments.count, moments.sum[J], moments.gram[J][:, J])


def _correct(
    small: PreTrainedModel, reading: Reading, seen: Mapping[str, Residuals], kept: Moments, *, ridge: float
) -> Correction:
    change = sequential_change(seen["fit"], kept, seen["select"], bias=reading.bias, ridge=ridge)
    if change.after < change.before:
        reading.nudge(small, change.δW, change.δb)
    rho = None if change.ρ == torch.inf else change.ρ
    return Correction(reading.site.name, change.β, rho, change.before, change.after)

"""Sequential correction of a smaller model: every reader is refitted on what really reaches it.

Dense and small model are walked side by side, block by block: teacher and student. Of the teacher the streams before
and after each sublayer are kept for one block (tokens × hidden size); the student is run once for each of its readers,
so that each sees what the corrected ones before it send. The formulas are in `decompose.sequential`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from slimformer.linalg.residuals import Residuals
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

    A walk that was stopped goes on at the first block that is not finished ("correct"). Cost: about four forward passes
    and one Gram matrix per width.
    """
    architecture, home = describe(dense), residence.of_copy
    notes = residence.notes("correct")
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


def _correct_block(
    small: Visit, dense: Visit, cut: Cut[Plan], pairs: Sequence[Pair]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Correct the readers of a block in place and let both streams of every pair through it.

    Returned are a note of what was done, and the parameters that were changed as they were before.
    """
    before = dict(small.block.named_parameters(small.path))
    done = correct_readers(small, dense, cut, pairs)
    for pair in pairs:
        small.advance(pair.student)
    now = dict(small.block.named_parameters(small.path))
    changed = [name for name, parameter in before.items() if now[name] is not parameter]
    old = {name: dense.residence.keep(_old(name), before[name].detach()) for name in changed}
    return {"corrections": [asdict(each) for each in done], "changed": changed}, old


def correct_readers(small: Visit, dense: Visit, cut: Cut[Plan], pairs: Sequence[Pair]) -> list[Correction]:
    """Correct the readers of a block in place; the streams of the teacher go through it, those of the student stay."""
    plan, of_block = cut.how, cut.moments(dense.i)
    targets = [_targets(dense, pair.teacher) for pair in pairs]
    done = []
    for site in dense.sites:
        if site.stays:
            continue
        size = plan.sizes[site.name]
        reading = Reading(site, size.rank)
        seen = _compare(small, reading, pairs, [target[site.name] for target in targets])
        if reading.rank:
            J = coordinates(sorted(cut.curves[site.name].order[: size.units]), 1)
            kept = reading.moments(small.model, of_block.joint["fit"], J)
        else:
            kept = _kept(dense, site, of_block, cut)
        done.append(_correct(small.model, reading, seen, kept, ridge=plan.ridge))
    return done


def _targets(dense: Visit, stream: Stream) -> dict[str, Target]:
    """Let a stream through a block of the teacher and note what its sublayers did."""
    dense.enter(stream)  # before anything is noted: the rehearsal of another stack runs its blocks, too
    before, after = dict[str, Tensor](), dict[str, Tensor]()
    dense.enter(stream)  # before anybody listens
    with listening(
        dense.model,
        inputs={site.entry: _note(before, site.name) for site in dense.sites},
        outputs={Reading(site).exit: _note(after, site.name) for site in dense.sites},
    ):
        dense.advance(stream)

    def rows(seen: Mapping[str, Tensor], site: Site, what: str) -> Tensor:
        name = f"{stream.name}.target.{site.part.name}.{what}"
        return dense.residence.keep(name, real_rows(seen[site.name], stream.rows))

    return {site.name: Target(rows(before, site, "before"), rows(after, site, "after")) for site in dense.sites}


class _Seen(Exception):
    """Raised once a sublayer has given its output: what follows in the block need not run."""


def _compare(small: Visit, reading: Reading, pairs: Sequence[Pair], targets: Sequence[Target]) -> dict[str, Residuals]:
    """What is missing in the student after the sublayer of a site, by split."""
    residuals: dict[str, Residuals] = {}
    places = {"stream": reading.site.entry, **reading.heard_at(small.model)}
    for pair, target in zip(pairs, targets, strict=True):
        seen: dict[str, Tensor] = {}
        small.enter(pair.student)
        with (
            suppress(_Seen),
            listening(
                small.model,
                inputs={place: _note(seen, name) for name, place in places.items()},
                outputs={reading.exit: _note(seen, "added", last=small.here.runs)},
            ),
        ):
            small.run(pair.student)
        X = real_rows(reading.features(seen), pair.rows)
        stream, added = (real_rows(seen[name], pair.rows) for name in ("stream", "added"))
        missing = target.added - added
        before = target.stream - stream if reading.site.part.adds else 0
        split, new = pair.student.split, Residuals.of(X, missing, missing + before)
        residuals[split] = residuals[split] + new if split in residuals else new
    return residuals


def _note(seen: dict[str, Tensor], name: str, *, last: int = 0) -> Hook:
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

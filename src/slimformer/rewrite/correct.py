"""Sequential correction of a smaller model: every reader is refitted on what really reaches it.

Dense and small model are walked side by side, block by block. Of the dense one the streams before and after each
sublayer are kept for one block (tokens × hidden size); the small one is run once for each of its readers, so that
each sees what the corrected ones before it send. The formulas are in `decompose.sequential`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.collect import (
    IN_MEMORY,
    BlockMoments,
    Residence,
    Stage,
    listening,
    real_rows,
    rehearse,
    state_name,
    through,
)
from slimformer.calibrate.text import Batch
from slimformer.decompose import Curve
from slimformer.decompose.low_rank import on_values
from slimformer.decompose.reduction import coordinates
from slimformer.decompose.sequential import sequential_change
from slimformer.linalg.moments import Moments
from slimformer.linalg.residuals import Residuals
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import ffn_entry, weight_of
from slimformer.plan import Plan
from slimformer.plan.curves import order_of
from slimformer.plan.ranks import attention_of
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


@dataclass
class Pair:
    """One batch in both models: how blocks are called, and the two streams before the next block."""

    stage: Stage
    dense: Tensor
    small: Tensor


@dataclass(frozen=True)
class Lesson:
    """What the dense model did at one sublayer, at real positions: the stream it added to, and what it added."""

    stream: Tensor
    added: Tensor


@torch.no_grad()
def correct(
    small: PreTrainedModel,
    dense: PreTrainedModel,
    plan: Plan,
    curves: Mapping[str, Curve],
    moments: Callable[[int], BlockMoments],
    data: Mapping[str, Sequence[Batch]],
    *,
    progress: Callable[[int], None] = lambda _block: None,
) -> tuple[list[Correction], list[Pair]]:
    """Correct the readers of `small` in place; fitted on `data["fit"]`, chosen on `data["select"]`.

    Also returned: both streams after the last block. Cost: about four forward passes and one Gram matrix per width.
    """
    architecture = describe(dense)
    pairs = [
        Pair(stage, stage.state, stage.state)
        for split in ("fit", "select")
        for stage in rehearse(dense, architecture, data[split], split)
    ]
    done = []
    for i in range(architecture.n_blocks):
        done += correct_block(small, dense, architecture, i, plan, curves, moments(i), pairs)
        progress(i)
    return done, pairs


def correct_block(
    small: PreTrainedModel,
    dense: PreTrainedModel,
    architecture: Architecture,
    i: int,
    plan: Plan,
    curves: Mapping[str, Curve],
    of_block: BlockMoments,
    pairs: Sequence[Pair],
    residence: Residence = IN_MEMORY,
) -> list[Correction]:
    """Correct the readers of block i of `small` in place, and let both streams of every pair through the block."""
    sizes = plan.sizes
    lessons = [_teach(dense, architecture, i, pair, residence) for pair in pairs]
    done = []
    for site in architecture.of_block(i):
        if site.fixed:
            continue
        reading = Reading(site, sizes[site.name].rank)
        seen = _compare(small, architecture, reading, pairs, [lesson[site.name] for lesson in lessons])
        if reading.rank:
            J = coordinates(sorted(curves[site.name].order[: sizes[site.name].units]), 1)
            kept = reading.moments(small, of_block.joint["fit"], J)
        else:
            kept = _kept(dense, architecture, site, of_block, curves, plan)
        done.append(_correct(small, reading, seen, kept, ridge=plan.ridge))
    block = small.get_submodule(f"{architecture.blocks}.{i}")
    for pair in pairs:
        after = through(block, pair.small, pair.stage.calls[i])
        pair.small = residence.keep(state_name(pair.stage, "small", i + 1), after)
    return done


def _teach(
    dense: PreTrainedModel, architecture: Architecture, i: int, pair: Pair, residence: Residence
) -> dict[str, Lesson]:
    """Run block i of the dense model on and note what its sublayers did."""
    block = f"{architecture.blocks}.{i}"
    attention, ffn = architecture.of_block(i)
    heard: dict[str, Tensor] = {}
    with listening(
        dense,
        inputs={f"{block}.{ffn_entry(dense, architecture.family)}": _note(heard, "stream")},
        outputs={attention.reader: _note(heard, "attention"), Reading(ffn).exit: _note(heard, "ffn")},
    ):
        after = through(dense.get_submodule(block), pair.dense, pair.stage.calls[i])
    rows = {
        name: residence.keep(f"{pair.stage.name}.lesson.{name}", real_rows(X, pair.stage.rows))
        for name, X in {**heard, "before": pair.dense}.items()
    }
    pair.dense = residence.keep(state_name(pair.stage, "dense", i + 1), after)
    return {
        attention.name: Lesson(rows["before"], rows["attention"]),
        ffn.name: Lesson(rows["stream"], rows["ffn"]),
    }


class _Heard(Exception):
    """Raised once a sublayer has been heard: what follows in the block need not run."""


def _compare(
    small: PreTrainedModel,
    architecture: Architecture,
    reading: Reading,
    pairs: Sequence[Pair],
    lessons: Sequence[Lesson],
) -> dict[str, Residuals]:
    """What is missing in the small model after the sublayer of a site, by split."""
    site = reading.site
    path = f"{architecture.blocks}.{site.block}"
    entry = f"{path}.{ffn_entry(small, architecture.family)}" if site.kind == "ffn.hidden" else path
    found: dict[str, Residuals] = {}
    places = {"stream": entry, **reading.heard_at(small)}
    for pair, lesson in zip(pairs, lessons, strict=True):
        heard: dict[str, Tensor] = {}
        with (
            suppress(_Heard),
            listening(
                small,
                inputs={place: _note(heard, name) for name, place in places.items()},
                outputs={reading.exit: _note(heard, "added", last=True)},
            ),
        ):
            through(small.get_submodule(path), pair.small, pair.stage.calls[site.block])
        X = real_rows(reading.features(heard), pair.stage.rows)
        stream, added = (real_rows(heard[name], pair.stage.rows) for name in ("stream", "added"))
        missing = lesson.added - added
        split, new = pair.stage.split, Residuals.of(X, missing, missing + lesson.stream - stream)
        found[split] = found[split] + new if split in found else new
    return found


def _note(heard: dict[str, Tensor], name: str, *, last: bool = False) -> Callable[[Tensor], None]:
    def ear(X: Tensor) -> None:
        heard[name] = X
        if last:
            raise _Heard

    return ear


def _kept(
    dense: PreTrainedModel,
    architecture: Architecture,
    site: Site,
    block: BlockMoments,
    curves: Mapping[str, Curve],
    plan: Plan,
) -> Moments:
    """Moments, in the dense model, of the features the small one keeps: selected coordinates, or values turned."""
    moments = block.sites[site.name]["fit"]
    sizes = plan.sizes
    rank = sizes[values].units if (values := f"blocks.{site.block}.attn.vo") in sizes else site.unit
    if site.kind == "attn.heads" and rank < site.unit:
        W_o = weight_of(dense.get_submodule(site.reader))
        attention = attention_of(
            architecture, site.block, W_o, block,
            ridge=plan.ridge, absorb_mean=plan.absorb_mean, metric=plan.metric,
        )  # fmt: skip
        return on_values(moments, attention.values(rank).S, group=site.group)
    size = sizes[site.name]
    J = coordinates(sorted(order_of(curves, site.name, size)[: size.units]), site.unit)
    return Moments(moments.count, moments.sum[J], moments.gram[J][:, J])


def _correct(
    small: PreTrainedModel, reading: Reading, seen: Mapping[str, Residuals], kept: Moments, *, ridge: float
) -> Correction:
    change = sequential_change(seen["fit"], kept, seen["select"], bias=reading.bias, ridge=ridge)
    if change.after < change.before:
        reading.nudge(small, change.δW, change.δb)
    rho = None if change.ρ == torch.inf else change.ρ
    return Correction(reading.site.name, change.β, rho, change.before, change.after)

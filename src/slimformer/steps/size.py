"""The best model that fits into so many bytes: every number of bits, each with as many weights as then fit.

A size can be met by fewer weights or by fewer bits, in blocks and in the tables at both ends. Each way to store leaves
room for one share of the blocks' parameters; every such pair is made, and the one that does the least harm on the
select split is kept. Left out is what can only be worse: the whole model in fewer bits than it fits in, and tables in
all bits where eight leave notably more of the blocks (rows of eight bits cost next to nothing:
docs/methods/quantization.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.checkpoint.pack import step_dtype, stored_bytes, stored_tensors
from slimformer.checkpoint.tensor_file import file_bytes
from slimformer.decompose.rounding import Grid
from slimformer.errors import BudgetOutOfReach
from slimformer.evaluate.fidelity import document_harms
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.architecture import weight_of
from slimformer.plan import Budget
from slimformer.plan.memory import in_words
from slimformer.plan.settings import CutSettings
from slimformer.rewrite.in_turn import linear_layers
from slimformer.rewrite.quantize import grid_with_tables, tables_of
from slimformer.run import Run
from slimformer.steps.make import make
from slimformer.steps.quantize import BITS, Quantize, grid_of, require_savable

TRIES = 3  # steps take more than planned where no group fits a width; then a little less is kept
LEAST = 0.1  # share of the parameters below which nothing is tried
NOTABLY = 0.05  # of the blocks' parameters
ALL = 32  # bits of what is not rounded


@dataclass(frozen=True)
class Room:
    """Bytes all weights may take, and how they may be stored: weights that share a step; tables in few bits, or not."""

    size: int
    group: int
    tables: bool | None = None  # none: whichever is better


def require_size_possible(run: Run, room: Room) -> None:
    """Refuse, before the work, a size that what is not compressed takes already."""
    model, dtype = run.dense, run.loaded.dtype
    require_savable(model)
    if not ways_that_fit(run, room):
        whole = _on_disk(model, dtype, {})
        fewest = Quantize(bits=min(BITS), group=room.group, tables=room.tables is not False and bool(tables_of(model)))
        least, inside = _split(model, dtype, fewest)
        raise BudgetOutOfReach(
            f"{in_words(room.size)} were asked for; the model has {in_words(whole)}, and with everything in "
            f"{min(BITS)} bits what is not cut (embeddings, norms, head) takes {in_words(int(least - inside))}; give "
            "more"
        )


def best_within(run: Run, settings: CutSettings, room: Room) -> Run:
    """Of all ways to fit into the size, the one that does the least harm on the select split."""
    best: Run | None = None
    tried: list[dict[str, Any]] = []
    for rounding, share in ways_that_fit(run, room):
        smaller = fitting(storing(run, rounding), settings, room.size, share, rounding)
        if smaller is None:
            continue
        harm = fmean(document_harms(run.dense, smaller.model, run.splits["select"]))
        if all(harm < each["harm"] for each in tried):
            best = smaller
        tried.append({**said(rounding), "params": smaller.decided.params, "bytes": bytes_of(smaller), "harm": harm})
    if best is None:
        raise BudgetOutOfReach(
            f"no model of {in_words(room.size)} can be made of this one; give more, or fewer {option('bits')}"
        )
    return best.reporting(sizing={"size": room.size, "candidates": tried})


def said(rounding: Quantize | None) -> dict[str, Any]:
    """A way to store weights, in a report."""
    return rounding.model_dump(include={"bits", "tables"}) if rounding else {"bits": None, "tables": False}


Choice = tuple[Quantize | None, float]  # how weights are stored, and the share of the blocks' parameters that then fits


def ways_that_fit(run: Run, room: Room) -> list[Choice]:
    """For every way to store the share of the blocks' parameters that fits, if it is not too small; see above."""
    ways: list[Choice] = []
    for rounding in _ways(run, room):
        whole, inside = _split(run.dense, run.loaded.dtype, rounding)
        share = min(1.0, 1 - (whole - room.size) / inside)
        if share >= LEAST and not any(s == 1.0 and _is_finer(other, rounding) for other, s in ways):
            ways.append((rounding, share))
    return [(rounding, share) for rounding, share in ways if not _is_crowded_out(rounding, share, ways)]


def _ways(run: Run, room: Room) -> Sequence[Quantize | None]:
    """How weights may be stored, the finest first: as asked for, else in any number of bits."""
    quantize = next((step for step in run.after if isinstance(step, Quantize)), None)
    if quantize is not None:
        return [quantize]
    possible = (False, True) if tables_of(run.dense) else (False,)
    choices = possible if room.tables is None else (room.tables,)
    pairs = [(bits, tables) for tables in choices for bits in BITS]
    return [None, *(Quantize(bits=bits, group=room.group, tables=tables) for bits, tables in pairs)]


def _bits(way: Quantize | None) -> tuple[int, int]:
    """Of blocks and of tables."""
    return (ALL, ALL) if way is None else (way.bits, way.bits if way.tables else ALL)


def _is_finer(one: Quantize | None, other: Quantize | None) -> bool:
    """Has one at least as many bits as the other, everywhere?"""
    return all(a >= b for a, b in zip(_bits(one), _bits(other), strict=True))


def _is_crowded_out(way: Quantize | None, share: float, ways: Sequence[Choice]) -> bool:
    """Would tables of eight bits (and blocks of eight at most) leave notably more of the blocks?"""
    blocks, tables = _bits(way)
    instead = (min(blocks, max(BITS)), max(BITS))
    return tables == ALL and any(_bits(other) == instead and s > share + NOTABLY for other, s in ways)


def storing(run: Run, rounding: Quantize | None) -> Run:
    """The run with its weights stored so."""
    others = tuple(step for step in run.after if not isinstance(step, Quantize))
    return replace(run, after=(*others, rounding) if rounding else others)


def fitting(run: Run, settings: CutSettings, size: int, share: float, rounding: Quantize | None) -> Run | None:
    """The largest model of these bits that fits; none where the format cannot go that low."""
    whole, inside = _split(run.dense, run.loaded.dtype, rounding)
    for _ in range(TRIES):
        try:
            smaller = make(run, Budget(share, "params"), settings)
        except BudgetOutOfReach:
            return None
        if (taken := bytes_of(smaller)) <= size:
            return smaller
        share *= 0.995 * (size - whole + inside) / (taken - whole + inside)
    return None


def bytes_of(run: Run) -> int:
    """What the file of weights takes, to the byte."""
    if run.quantized is not None:
        return stored_bytes(run.quantized, run.loaded.dtype)
    return _on_disk(run.model, run.loaded.dtype, {})


def _split(model: PreTrainedModel, dtype: torch.dtype, rounding: Quantize | None) -> tuple[int, float]:
    """Bytes of the file if nothing is cut, and how many of them are weights of linear layers in blocks."""
    weights = _weights(model)
    if rounding is None:
        return _on_disk(model, dtype, {}), sum(weights.values()) * dtype.itemsize
    grid = grid_of(rounding.bits, rounding.group)
    grids = dict.fromkeys(weights, grid)
    if rounding.tables:
        grid = grid_with_tables(model, grid)
        grids = dict.fromkeys([*weights, *tables_of(model)], grid)
    step = 8 * step_dtype(model, grids).itemsize
    each = (rounding.bits + step / (grid.group or 256)) / 8
    return _on_disk(model, dtype, grids), sum(weights.values()) * each


def _on_disk(model: PreTrainedModel, dtype: torch.dtype, grids: dict[str, Grid]) -> int:
    """Bytes of the file, with these layers on grids."""
    return file_bytes(stored_tensors(model, dtype, grids))


def _weights(model: PreTrainedModel) -> dict[str, int]:
    """Linear layers in blocks, and how many weights each has."""
    architecture = describe(model)
    names = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    return {name: weight_of(model.get_submodule(name)).numel() for name in names}

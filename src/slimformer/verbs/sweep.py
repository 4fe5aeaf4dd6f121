"""The models of several budgets, made and measured one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from slimformer.calibrate.documents import Source
from slimformer.calibrate.gather import Data
from slimformer.calibrate.recorded import read_again
from slimformer.calibrate.store import Statistics
from slimformer.evaluate.assessment import held_out_batches, is_held_out, known_data
from slimformer.evaluate.data_notes import few_examples
from slimformer.messages.arguments import check_arguments
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.plan.asked import require_fraction
from slimformer.recipe import RECIPE, Recipe
from slimformer.run import Run
from slimformer.steps import frontier as front
from slimformer.verbs.asked import FRACTIONS, MOVED, STATS, Model, ReadingOptions, read_for, started_from

BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5)


class SweepOptions(ReadingOptions, total=False):
    """The `recipe` whose cut is made (balanced), the `format` (ragged), how data are read and the model is opened."""

    recipe: str | Path | Recipe
    format: str


@dataclass(frozen=True)
class Sweep:
    """A row for each budget: what is kept, the divergence that was predicted, and metrics with their intervals.

    `rank_correlation` is Spearman's, of predicted and measured divergence; none for fewer than three budgets.
    """

    points: list[dict[str, Any]]
    rank_correlation: float | None
    notes: list[str]
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"slimformer_sweep": 1, **asdict(self)}


@check_arguments(stats=STATS, budgets=FRACTIONS, model=MOVED, recipe=RECIPE)
@torch.inference_mode(False)
def sweep(
    stats: str | Path | Statistics, budgets: Iterable[float] = BUDGETS, *, data: Source | Tensor | None = None,
    model: Model | None = None, progress: Progress = silent, **options: Unpack[SweepOptions],
) -> Sweep:  # fmt: skip
    """Make and measure the models of `budgets`, fractions of the block MACs, one after the other.

    Without `data` they are measured on what was held out of the data the statistics were made from; of those, no other
    part is read with `data` either. Cost: for each budget what `cut` costs and a forward pass of both models.

    >>> found = slimformer.sweep("stats", [0.8, 0.5])
    >>> [row["macs"] <= row["budget"] for row in found.points]
    [True, True]
    """
    shares, given = list(budgets), dict[str, Any](options)
    for share in shares:
        require_fraction(share)
    run, settings = started_from(stats, model, given, progress)
    points = front.frontier(run, settings, shares)
    read = _read(run, data, given)
    batches, notes = held_out_batches(run.known.provenance, read)
    rows = list(front.sweep(run, settings, points, batches))
    pairs = [(row["predicted_kl"], kl) for row in rows if (kl := measured_kl(row)) is not None and row["predicted_kl"]]
    notes = [*notes, *few_examples(rows[0]["metrics"] if rows else [], read.unit)]
    return Sweep(rows, front.correlation(pairs), notes, _facts(run, read, sum(batch.tokens for batch in batches)))


def _read(run: Run, data: Source | Tensor | None, given: dict[str, Any]) -> Data:
    """What is measured on: the data that were named, or those that the statistics are of."""
    loaded, provenance = run.loaded, run.known.provenance
    if data is not None:
        as_then = {**given, "seq_len": provenance.seq_len, "seed": provenance.seed}
        return read_for(loaded, data, as_then, purpose="evaluation")
    return read_again(
        known_data(provenance), loaded.model, loaded.processor, owner=str(run.known.folder),
        seq_len=provenance.seq_len, tokens=given.get("tokens"),
    )  # fmt: skip


def _facts(run: Run, read: Data, tokens: int) -> dict[str, Any]:
    """What the table says of its data."""
    return {
        "name": read.name, "hash": read.hash, "tokens": {"report": tokens}, "document": read.unit,
        "unit": describe(run.dense).family.unit,
        "held_out": is_held_out(known_data(run.known.provenance), read), "read_as": list(read.notes),
    }  # fmt: skip


def measured_kl(row: dict[str, Any]) -> float | None:
    """The mean divergence that was measured, where there is one."""
    return next((m["small"] for m in row.get("metrics", []) if m["name"] == "kl"), None)

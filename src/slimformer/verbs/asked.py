"""What the public functions take by name, and how they open models, statistics and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.documents import Source
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.calibrate.store import Statistics, open_statistics
from slimformer.calibrate.tasks import Purpose
from slimformer.messages.arguments import MODEL, PATH, Kind
from slimformer.messages.progress import Progress
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model, open_for_work
from slimformer.models.opening import Opening, OpeningOptions, opening_in
from slimformer.plan.asked import require_format
from slimformer.plan.settings import CutSettings
from slimformer.recipe import Recipe, cut_settings
from slimformer.run import Run
from slimformer.steps.make import from_statistics

Model = str | Path | PreTrainedModel | Loaded
MODEL_OR_LOADED = Kind(MODEL.wanted, lambda x: isinstance(x, Loaded) or MODEL.accepts(x))
MOVED = replace(MODEL_OR_LOADED, optional=True)
STATS = Kind(
    "a folder of statistics, or what calibrate returned", lambda x: isinstance(x, Statistics) or PATH.accepts(x)
)
FRACTIONS = Kind(
    "a list of fractions to keep", lambda x: not isinstance(x, str | bytes | dict) and hasattr(x, "__iter__")
)
READING = ("columns", "tokens", "samples", "seq_len", "seed")


class ReadingOptions(OpeningOptions, total=False):
    """How data are read: `columns` of a table, `tokens` and `samples` at most, sequences of `seq_len`, and a `seed`;
    the `processor` (tokenizer or image processor) of a model in memory."""

    processor: Any

    columns: Sequence[str] | None
    tokens: int | None
    samples: int | None
    seq_len: int | None
    seed: int


class BudgetOptions(OpeningOptions, total=False):
    """One budget, as the fraction to keep: of block MACs, of the blocks' parameters, or of their measured latency."""

    macs: float | None
    params: float | None
    latency: float | None


def open_pair(model: Model, against: Model, opening: Opening, processor: Any = None) -> tuple[Loaded, Loaded]:
    """The dense model and the smaller one; `opening` is for both, but of the hub only the dense one is said to be."""
    ours = replace(opening, revision=None, trust_remote_code=False)
    return open_for_work(against, processor, opening), open_for_work(model, processor, ours)


def read_for(
    loaded: Loaded, data: Source | Tensor, given: dict[str, Any], *, purpose: Purpose = "calibration",
    broad: bool = False,
) -> Data:  # fmt: skip
    """Data for a model; how they are read is taken from arguments given by name, which stay."""
    reading = {name: given[name] for name in READING if name in given}
    request = Reading(purpose=purpose, broad=broad, **reading)
    return gather(data, loaded.model, loaded.processor, describe(loaded.model), request)


def opened_statistics(stats: str | Path | Statistics) -> Statistics:
    """Statistics in a folder, or those that are given."""
    return stats if isinstance(stats, Statistics) else open_statistics(Path(stats))


def model_of(statistics: Statistics, moved: Model | None, given: dict[str, Any]) -> Loaded:
    """The model the statistics are of, in the precision they were made in: then every route gives the same bits."""
    provenance = statistics.provenance
    dtype: torch.dtype = getattr(torch, provenance.dtype)
    if moved is not None and not isinstance(moved, str | Path):
        return open_for_work(moved, given.get("processor"))
    # not `open_for_work`: half precision of an accelerator is slow here, and still gives what was calibrated
    return load_model(provenance.model if moved is None else moved, replace(opening_in(given), dtype=dtype))


def started_from(
    stats: str | Path | Statistics, model: Model | None, how: dict[str, Any], progress: Progress
) -> tuple[Run, CutSettings]:
    """A run from statistics and from the model they are of, wherever it is now, and the settings of a recipe's cut;
    another model is refused."""
    recipe: str | Path | Recipe = how.pop("recipe", "balanced")
    settings, format = cut_settings(recipe), how.pop("format", "ragged")
    require_format(format)
    statistics = opened_statistics(stats)
    loaded = model_of(statistics, model, how)
    return from_statistics(loaded, statistics, settings, format=format, progress=progress), settings

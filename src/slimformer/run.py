"""The one context of the work: what a recipe started from, and what its steps have made so far.

A step takes a `Run` and returns a `Run`; nothing else is passed on. It is frozen, so a step that tries several budgets
can start each of them from the same one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from slimformer.calibrate.gather import Data, sequence_length
from slimformer.calibrate.store import Statistics
from slimformer.calibrate.text import Batch
from slimformer.decompose import Curve
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.models.load import Loaded
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.plan import Plan
from slimformer.rewrite.correct import Correction
from slimformer.rewrite.quantize import Quantized


@dataclass(frozen=True)
class Run:
    """`loaded` is the dense model, `model` what has become of it; `sections` are what steps say in the report.

    Where the dense model lost tokens first, `original` is what it was, and `loaded` what all later steps start from.

    `source` is what the data were read from, `folder` where statistics are written, `residence` where weights live
    while a model is walked, `length` the sequence length that was asked for, if any, `before` are the steps
    before the cut, and `after` those that follow it: a size or a divergence that is asked for is that of the finished
    model.
    """

    loaded: Loaded
    model: PreTrainedModel
    format: str = "ragged"
    length: int | None = None
    source: Any = None
    data: Data | None = None
    folder: Path | None = None
    residence: Residence = IN_MEMORY
    progress: Progress = silent
    seconds: dict[str, float] = field(default_factory=dict)
    statistics: Statistics | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)
    plan: Plan | None = None
    corrections: tuple[Correction, ...] = ()
    quantized: Quantized | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    original: Loaded | None = None
    parts: Mapping[str, bytes] = field(default_factory=dict)  # files that are saved beside the model

    @property
    def dense(self) -> PreTrainedModel:
        return self.loaded.model

    @property
    def splits(self) -> dict[str, list[Batch]]:
        """The batches of every split; for steps that have said that they read data."""
        assert self.data is not None
        return self.data.splits

    @property
    def known(self) -> Statistics:
        """The statistics; for what comes after calibration."""
        assert self.statistics is not None
        return self.statistics

    @property
    def decided(self) -> Plan:
        """The plan; for what comes after a step that makes one."""
        assert self.plan is not None
        return self.plan

    @property
    def seq_len(self) -> int:
        """The length at which MACs are counted: that of the data or the statistics, or what was asked for."""
        if self.statistics is not None:
            return self.statistics.provenance.seq_len
        if self.data is not None:
            return self.data.seq_len
        return sequence_length(self.dense, describe(self.dense), self.length)

    def reporting(self, **sections: Any) -> Run:
        """The run with more to say in the report."""
        return replace(self, sections={**self.sections, **sections})

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of a stage to those it took before."""
        with timed(self.seconds, stage):
            yield


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the seconds of a stage to those it took before."""
    started = time.perf_counter()
    yield
    seconds[stage] = round(seconds.get(stage, 0.0) + time.perf_counter() - started, 2)

"""The story on one screen: describe → calibrate → profile → allocate → apply → evaluate → save.

Every box is data and every arrow is one function of `stages`, so each step can be run alone, from Python or from
the shell, and can leave a file. `compress` runs them all.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.assess import evaluate
from slimformer.calibrate.documents import Source
from slimformer.calibrate.gather import gather, sequence_length
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model, require_usable
from slimformer.plan import Plan, check_budget
from slimformer.plan.recipe import Recipe, load_recipe
from slimformer.probe import keep_probes
from slimformer.report.report import Report
from slimformer.stages import (
    Progress,
    calibrate,
    carry_out,
    make_plan,
    profile,
    save_result,
    silent,
)


@dataclass(frozen=True)
class Result:
    """A smaller model, what was decided, and what it did."""

    model: PreTrainedModel
    plan: Plan
    report: Report
    loaded: Loaded = field(repr=False)

    def save(self, folder: str | Path, *, force: bool = False, verify: bool = True) -> Path:
        """Write a checkpoint that loads like any other; it is reloaded in a fresh process before it is put in place."""
        return save_result(self.loaded, self.model, self.plan, self.report, Path(folder), force=force, verify=verify)


def compress(
    model: str | Path | PreTrainedModel,
    data: Source | Tensor = "builtin",
    *,
    macs: float,
    recipe: str | Recipe = "balanced",
    format: str = "ragged",
    processor: Any = None,
    seq_len: int | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    latency: bool = True,
    progress: Progress = silent,
) -> Result:
    """Shrink `model` to the fraction `macs` of its block MACs, without retraining.

    `model` is a folder, a hub id, `demo:smollm2`, or a model in memory (give its tokenizer as `processor`; `device` and
    `dtype` are then its own). `data` is what to calibrate on: a file, `builtin`, a data set's name, texts, token ids
    (sequences × length), or a folder of images. `tokens` limits what is fitted on. The same seed gives the same model.
    Cost: one forward pass, one Gram matrix and one elimination per width.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "load"):
        loaded = (
            in_memory(model, processor)
            if isinstance(model, PreTrainedModel)
            else load_model(model, dtype=dtype, device=device)
        )
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    architecture = describe(loaded.model)
    length = sequence_length(loaded.model, architecture, seq_len)
    check_budget(architecture, macs=macs, seq_len=length, recipe=chosen, format=format)  # before the long work
    with _timed(seconds, "data"):
        batches = gather(
            data, loaded.model, loaded.processor, architecture,
            seq_len=seq_len, tokens=tokens, samples=samples, columns=columns, seed=seed,
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
        with _timed(seconds, "calibrate"):
            statistics = calibrate(loaded, batches, Path(scratch), progress=progress)
        with _timed(seconds, "profile"):
            curves = profile(loaded.model, statistics, chosen, progress=progress)
        if chosen.allocation == "greedy":
            with _timed(seconds, "probe"):
                keep_probes(loaded.model, statistics, batches.splits["select"], progress=progress)
        plan = make_plan(loaded.model, statistics, curves, macs=macs, recipe=chosen, format=format)
        with _timed(seconds, "apply"):
            small = carry_out(plan, loaded.model, statistics, curves, progress=progress)
            round_weights(small, loaded.dtype)
    with _timed(seconds, "evaluate"):
        report = evaluate(loaded, small, plan, batches, latency=latency, progress=progress)
    return Result(small, plan, replace(report, seconds=seconds), loaded)


def in_memory(model: PreTrainedModel, processor: Any = None) -> Loaded:
    """A model that is already here. It is put into evaluation mode and otherwise left as it is."""
    require_usable(model, type(model).__name__)
    name = getattr(model.config, "name_or_path", "") or type(model).__name__
    return Loaded(name, model.eval(), processor, None, model.dtype)


@torch.no_grad()
def round_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round weights to the precision they are stored in: what is measured is then what is saved."""
    if model.dtype != dtype:
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - started, 2)

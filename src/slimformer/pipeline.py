"""The story on one screen: describe → calibrate → profile → allocate → apply → evaluate → save.

Every box is data and every arrow is one function of `stages`, so each step can be run alone, from Python or from
the shell, and can leave a file. `compress` runs them all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.assess import evaluate
from slimformer.calibrate.documents import Source
from slimformer.calibrate.gather import Data, gather, sequence_length
from slimformer.classify import held_out_texts, rehead
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model, require_usable
from slimformer.plan import Budget, Plan, check_budget
from slimformer.plan.budget import budget_of
from slimformer.plan.recipe import Recipe, load_recipe
from slimformer.report.report import Report
from slimformer.stages import Progress, save_result, silent
from slimformer.workbench import priced, smallest_certified, timed, workbench


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
    macs: float | None = None,
    params: float | None = None,
    latency: float | None = None,
    max_kl: float | None = None,
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
    refine: bool | None = None,
    head_data: str | Path | None = None,
    timing: bool = True,
    progress: Progress = silent,
) -> Result:
    """Shrink `model` to a fraction of its block MACs (`macs`), block parameters (`params`) or measured block latency
    on this machine (`latency`), without retraining; or to the smallest model of a front whose mean KL divergence from
    the dense one is at most `max_kl`, certified on documents opened for nothing else (docs/methods/certificate.md).

    `model` is a folder, a hub id, `demo:smollm2`, or a model in memory (give its tokenizer as `processor`; `device` and
    `dtype` are then its own). `data` is what to calibrate on: a file, `builtin`, a data set's name, texts, token ids
    (sequences × length), or a folder of images. `tokens` limits what is fitted on. The same seed gives the same model.
    `refine` (the recipe says, unless told here) corrects every reader on what the cut model really sends it.
    `head_data` are labelled rows a fresh head is fitted on, in closed form, for the features of the cut model.
    Cost: one forward pass, one Gram matrix and one elimination per width; the refinement costs about four passes more.
    """
    seconds: dict[str, float] = {}
    with timed(seconds, "load"):
        loaded = _opened(model, processor, dtype, device)
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    architecture = describe(loaded.model)
    length = sequence_length(loaded.model, architecture, seq_len)
    budget = Budget(1.0) if max_kl is not None else budget_of(macs=macs, params=params, latency=latency)
    if budget.by != "latency":
        check_budget(architecture, budget, seq_len=length, recipe=chosen, format=format)  # before the long work
    with timed(seconds, "data"):
        batches = gather(
            data, loaded.model, loaded.processor, architecture,
            seq_len=seq_len, tokens=tokens, samples=samples, columns=columns, seed=seed,
        )  # fmt: skip
    if budget.by == "latency":  # at the length the data has, as the plan counts
        budget = priced(budget, loaded.model, batches.seq_len, progress)
        check_budget(architecture, budget, seq_len=batches.seq_len, recipe=chosen, format=format)
    with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
        bench = workbench(loaded, batches, Path(scratch), chosen, format, refine, progress, seconds)
        made, certificate = (bench.make(budget), None) if max_kl is None else smallest_certified(bench, max_kl)
    with timed(seconds, "evaluate"):
        report = evaluate(loaded, made.model, made.plan, batches, timing=timing, progress=progress)
    small, report = _reheaded(loaded, made.model, report, head_data, data, batches, columns, samples, seconds, progress)
    corrections = [asdict(each) for each in made.corrections]
    report = replace(report, seconds=seconds, correction=corrections, certificate=certificate)
    return Result(small, made.plan, report, loaded)


def _reheaded(
    loaded: Loaded, small: PreTrainedModel, report: Report, head_data: str | Path | None, data: Source | Tensor,
    batches: Data, columns: Sequence[str] | None, samples: int | None, seconds: dict[str, float], progress: Progress,
) -> tuple[PreTrainedModel, Report]:  # fmt: skip
    """The cut model with a head fitted on its own features; rows that are reported on are kept out of the fit."""
    if head_data is None:
        return small, report
    with timed(seconds, "head"):
        kept_out = held_out_texts(data, loaded, columns=columns, samples=samples, seed=batches.seed)
        return rehead(loaded, small, report, head_data, kept_out, batches, columns, progress)


def _opened(model: str | Path | PreTrainedModel, processor: Any, dtype: torch.dtype, device: str) -> Loaded:
    if isinstance(model, PreTrainedModel):
        return in_memory(model, processor)
    return load_model(model, dtype=dtype, device=device)


def in_memory(model: PreTrainedModel, processor: Any = None) -> Loaded:
    """A model that is already here. It is put into evaluation mode and otherwise left as it is."""
    require_usable(model, type(model).__name__)
    name = getattr(model.config, "name_or_path", "") or type(model).__name__
    return Loaded(name, model.eval(), processor, None, model.dtype)

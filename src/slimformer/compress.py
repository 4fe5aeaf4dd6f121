"""The story on one screen: describe → calibrate → profile → allocate → apply → evaluate → save.

Every box is data and every arrow is one function of `stages`, so each step can be run alone, from Python or from
the shell, and can leave a file. `compress` runs them all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.distributed import lead_only
from slimformer.calibrate.documents import UNNAMED, Source
from slimformer.calibrate.gather import Data, gather, sequence_length
from slimformer.calibrate.narrowness import narrowness_noted
from slimformer.calibrate.tasks import Purpose
from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.evaluate.assessment import beside, evaluate
from slimformer.evaluate.report import Report
from slimformer.heads.classify import held_out_texts, rehead, require_headroom
from slimformer.messages.arguments import check_arguments
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import either, option
from slimformer.models import describe
from slimformer.models.load import Loaded, open_for_work
from slimformer.models.opening import Opening, OpeningOptions
from slimformer.nn.long_context import require_every_key
from slimformer.plan import Budget, check_budget, require_budget_allowed
from slimformer.plan.budget import budget_of, require_one
from slimformer.plan.recipe import RECIPE, Recipe, load_recipe
from slimformer.rewrite.surgery import round_weights
from slimformer.steps.depth import blocks_to_drop, make_shallow
from slimformer.steps.long_context import STEPS, Wanted, compress_context, require_groupable, sequence_length_for
from slimformer.steps.lossless import make_lossless
from slimformer.steps.result import Result
from slimformer.steps.size import (
    Storage,
    Stored,
    best_within,
    require_storage_goes_with,
    require_storage_possible,
    stored,
)
from slimformer.steps.workbench import Bench, Made, priced, require_certifiable, smallest_certified, timed, workbench


@check_arguments(recipe=RECIPE)
def compress(
    model: str | Path | PreTrainedModel,
    data: Source | Tensor = UNNAMED,
    *,
    macs: float | None = None,
    params: float | None = None,
    latency: float | None = None,
    max_kl: float | None = None,
    recipe: str | Path | Recipe = "balanced",
    format: str = "ragged",
    processor: Any = None,
    seq_len: int | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    columns: Sequence[str] | None = None,
    eval_data: Sequence[Source] = (),
    only_data: bool = False,
    seed: int = 0,
    refine: bool | None = None,
    head_data: str | Path | None = None,
    size: int | None = None,
    bits: int | None = None,
    group: int | None = 32,
    timing: bool = True,
    progress: Progress = silent,
    **opening: Unpack[OpeningOptions],
) -> Result:
    """Shrink `model` to a fraction of its block MACs (`macs`), block parameters (`params`) or measured block latency
    on this machine (`latency`), without retraining; or to the smallest model of a front whose mean KL divergence from
    the dense one is at most `max_kl`, certified on documents opened for nothing else (docs/methods/certificate.md).

    `model` is a folder, a hub id, `demo:smollm2`, or a model in memory (give its tokenizer as `processor`), opened as
    `models.opening.Opening` says. `data` is what to calibrate on: a file, `builtin`, a data set's name, texts, token
    ids, or a folder of images (none for the recipe `lossless`); `eval_data` are measured on beside its held-out part.
    Broad text is fitted beside it, unless it is to be the `only_data` (docs/calibration-data.md). `tokens` limits what
    is fitted on. `refine` corrects readers on what the cut model sends them; `head_data` are labelled rows for a fresh
    head. `bits` are 8 or 4, a step for every `group` weights; `size` chooses both. Cost: an elimination per width.
    """
    chosen, storage = load_recipe(recipe), Storage(bits, group, size)
    require_storage_goes_with(chosen, storage, alone=head_data is None and max_kl is None)
    budget = _asked(chosen, refine, macs=macs, params=params, latency=latency, max_kl=max_kl, size=size)
    loaded, seconds = _opened(model, processor, Opening(**opening))
    _require_possible(loaded, chosen, storage, head_data)
    if chosen.rewrites:
        return Result(*make_lossless(loaded, chosen, format=format, seq_len=seq_len, progress=progress), loaded)
    afford = partial(_affordable, budget, loaded.model, chosen, format, progress)
    if budget.by != "latency":  # before the long work
        afford(sequence_length(loaded.model, describe(loaded.model), seq_len))
    how = {"seq_len": seq_len, "tokens": tokens, "samples": samples, "columns": columns, "seed": seed}
    batches, others = _read_all(loaded, data, eval_data, how | {"only": only_data}, max_kl, seconds)
    if chosen.depth != "none":
        return _shallow(loaded, batches, others, chosen, budget, timing, progress, seconds)
    budget = budget if budget.by != "latency" else afford(batches.seq_len)  # the length at which plans count
    with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
        bench = workbench(loaded, batches, Path(scratch), chosen, format, refine, progress, seconds)
        kept, found = _made(bench, budget, max_kl, storage)
    report = _assessed(bench, kept, timing, found)
    small, report = _reheaded(bench, kept.made, report, head_data, data, columns, samples)
    report = beside(report, loaded, kept.made.model, others, known=report.data)
    return Result(small, kept.made.plan, report, loaded, kept.quantized)


def _require_possible(loaded: Loaded, recipe: Recipe, storage: Storage, head_data: str | Path | None) -> None:
    """Refuse, before the long work, what this model cannot have."""
    require_every_key(loaded.model)
    require_storage_possible(loaded.model, loaded.dtype, storage)
    if head_data is not None:
        require_headroom(loaded.model, lossless=bool(recipe.rewrites), shallow=recipe.depth != "none")


def _made(bench: Bench, budget: Budget, max_kl: float | None, storage: Storage) -> tuple[Stored, dict[str, Any]]:
    """The model as it will be stored, with a certificate if one was asked for and what the plan was chosen from."""
    certificate = None
    if max_kl is not None:
        made, certificate = smallest_certified(bench, max_kl)
        kept = Stored(made, 0)
    else:
        kept = best_within(bench, storage) if storage.size is not None else stored(bench, budget, storage)
    plan = kept.made.plan
    front = bench.menu(replace(budget, fraction=plan.budget, by=plan.by))  # type: ignore[arg-type]
    return kept, {"certificate": certificate, "front": front}


@check_arguments(recipe=RECIPE)
def group_keys(
    model: str | Path | PreTrainedModel,
    data: Source | Tensor = UNNAMED,
    *,
    k: int,
    kind: str | None = None,
    window: int = 256,
    keep_exact: int | None = None,
    max_kl: float | None = None,
    steps: int = STEPS,
    recipe: str | Path | Recipe = "long-context",
    processor: Any = None,
    seq_len: int | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    columns: Sequence[str] | None = None,
    only_data: bool = False,
    seed: int = 0,
    timing: bool = True,
    progress: Progress = silent,
    **opening: Unpack[OpeningOptions],
) -> Result:
    """Let attention of `model` run over `k` groups of keys (docs/methods/linformer.md); the weights stay.

    As many layers as keep the harm at the outputs below `max_kl` (0.05 if nothing is said), or all but the `keep_exact`
    where it is worst. Decoders also keep a `window` exact, and their cache stops growing. `kind` is cluster, mean, or
    for encoders least-squares and learned (`steps` of training). Cost: see `long_context.make_long_context`.
    """
    lead_only()
    loaded, seconds = _opened(model, processor, Opening(**opening))
    chosen = load_recipe(recipe)
    wanted = Wanted(k, kind or chosen.sequence, window, keep_exact, max_kl, steps)
    architecture = describe(loaded.model)
    require_groupable(loaded.model, architecture, wanted)
    length = sequence_length_for(loaded.model, architecture, wanted, seq_len)
    with timed(seconds, "data"):
        how: dict[str, Any] = {"tokens": tokens, "samples": samples, "columns": columns, "seed": seed}
        how["broad"] = not only_data
        read = gather(data, loaded.model, loaded.processor, architecture, seq_len=length, **how)
    with timed(seconds, "group and evaluate"):
        small, plan, report = compress_context(loaded, read, chosen, wanted, timing=timing, progress=progress)
    return Result(small, plan, replace(report, seconds=seconds), loaded)


def _opened(model: str | Path | PreTrainedModel, processor: Any, opening: Opening) -> tuple[Loaded, dict[str, float]]:
    """The model, and the seconds of every stage so far."""
    seconds: dict[str, float] = {}
    with timed(seconds, "load"):
        return open_for_work(model, processor, opening), seconds


def _read_all(
    loaded: Loaded, data: Source | Tensor, others: Sequence[Source], how: dict[str, Any], max_kl: float | None,
    seconds: dict[str, float],
) -> tuple[Data, list[Data]]:  # fmt: skip
    """What to calibrate on, enough of it for a certificate if one is wanted, and what to measure on beside."""
    how = dict(how)
    broad = not how.pop("only")

    def read(source: Source | Tensor, purpose: Purpose = "calibration") -> Data:
        beside = broad and purpose == "calibration"
        return gather(
            source, loaded.model, loaded.processor, describe(loaded.model), purpose=purpose, broad=beside, **how
        )

    with timed(seconds, "data"):
        found, beside = read(data), [read(each, purpose="evaluation") for each in others]
    require_certifiable(found, max_kl)
    with timed(seconds, "narrowness"):
        found = narrowness_noted(loaded.model, found)
    return found, beside


def _asked(recipe: Recipe, refine: bool | None, **given: float | None) -> Budget:
    """The one budget that was given; none but the whole model where a divergence or a size is, or nothing is cut."""
    if recipe.rewrites:
        require_budget_allowed(recipe, given=any(value is not None for value in given.values()))
        return Budget(1.0)
    if recipe.sequence != "none":
        raise BudgetOutOfReach(
            f"the recipe {recipe.name!r} keeps every weight, so it has no budget; call slimformer.group_keys with a k"
        )
    if (
        recipe.depth != "none" and given["max_kl"] is not None
    ):  # it is promised along a front, and there is none of depth
        raise BudgetOutOfReach(
            f"the recipe {recipe.name!r} takes a budget, not {option('max_kl')}; give {either('macs', 'params')}"
        )
    if recipe.depth != "none" and refine:
        raise UnknownMethod(f"the recipe {recipe.name!r} has no refinement: its maps are fitted where blocks go")
    by = require_one(given)
    return Budget(1.0) if by in ("max_kl", "size") else budget_of(**{by: given[by]})


def _affordable(
    budget: Budget, model: PreTrainedModel, recipe: Recipe, format: str, progress: Progress, seq_len: int
) -> Budget:
    """The budget with its prices, if it can be reached; else an error that names the minimum."""
    if recipe.depth != "none":
        blocks_to_drop(describe(model), budget)
        return budget
    budget = priced(budget, model, seq_len, progress)
    check_budget(describe(model), budget, seq_len=seq_len, recipe=recipe, format=format)
    return budget


def _assessed(bench: Bench, kept: Stored, timing: bool, found: dict[str, Any]) -> Report:
    """What the smaller model does on the report split, and how it came about."""
    made = kept.made
    with timed(bench.seconds, "evaluate"):
        report = evaluate(bench.loaded, made.model, made.plan, bench.data, timing=timing, progress=bench.progress)
    if kept.quantized is not None or kept.sizing is not None:
        report = replace(report, small=replace(report.small, bytes=kept.bytes), quantization=kept.facts)
    corrections = [asdict(each) for each in made.corrections]
    return replace(report, seconds=bench.seconds, correction=corrections, sizing=kept.sizing, **found)


def _shallow(
    loaded: Loaded, data: Data, others: Sequence[Data], recipe: Recipe, budget: Budget, timing: bool,
    progress: Progress, seconds: dict[str, float],
) -> Result:  # fmt: skip
    """Fewer blocks, measured."""
    lead_only()
    with timed(seconds, "depth"):
        small, plan, done = make_shallow(loaded.model, data, recipe, budget, progress=progress)
        round_weights(small, loaded.dtype)
    with timed(seconds, "evaluate"):
        report = evaluate(loaded, small, plan, data, timing=timing, progress=progress)
    report = replace(report, seconds=seconds, correction=[asdict(each) for each in done])
    return Result(small, plan, beside(report, loaded, small, others, known=report.data), loaded)


def _reheaded(
    bench: Bench, made: Made, report: Report, head_data: str | Path | None, data: Source | Tensor,
    columns: Sequence[str] | None, samples: int | None,
) -> tuple[PreTrainedModel, Report]:  # fmt: skip
    """The cut model with a head fitted on its own features; rows that are reported on are kept out of the fit."""
    if head_data is None:
        return made.model, report
    with timed(bench.seconds, "head"):
        report = replace(report, other_data=[], elsewhere=None)  # of the old head, and other text has no labels
        kept_out = held_out_texts(data, bench.loaded, columns=columns, samples=samples, seed=bench.data.seed)
        return rehead(bench.loaded, made.model, report, head_data, kept_out, bench.data, columns, bench.progress)

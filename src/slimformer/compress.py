"""The story on one screen: open → run the steps → evaluate.

`compress` reads a recipe, a list of steps; every step takes a `Run` and returns a `Run`. What a step does is in its
file in `steps/`, what may follow what in `steps/__init__.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.distributed import lead_only
from slimformer.calibrate.documents import UNNAMED, Source
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.calibrate.narrowness import narrowness_noted
from slimformer.calibrate.tasks import Purpose
from slimformer.errors import NotEnoughMemory
from slimformer.evaluate.assessment import with_other_data
from slimformer.export.serving import constrained, place_named
from slimformer.inspect.discovery import open_or_discover
from slimformer.messages.arguments import ANYTHING, MODEL, ON_DISK, PATH, Kind, check_arguments
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.load import Loaded, open_for_work
from slimformer.models.opening import OpeningOptions, opening_in
from slimformer.plan import Plan
from slimformer.plan.asked import BUDGETS
from slimformer.plan.budget import budget_of
from slimformer.recipe import RECIPE, Recipe, cut_settings, load_recipe, recipe_of, with_arguments, with_settings
from slimformer.run import Run, timed
from slimformer.steps import NAMES, require_known_stacks
from slimformer.steps.cut import Cut
from slimformer.steps.heal import Heal
from slimformer.steps.healing import belonging_to, healing_run, healing_work
from slimformer.steps.refine import Refine
from slimformer.steps.result import Result, assess
from slimformer.steps.serving import require_servable, serving_note
from slimformer.steps.streaming import Foreseen, Request, Streamed, foresee, stream
from slimformer.steps.streaming_limits import require_streamable, require_streaming_possible

MODEL_OR_LOADED = Kind(MODEL.wanted, lambda x: isinstance(x, Loaded) or MODEL.accepts(x))
HEALING = {name: ANYTHING for name in Heal.model_fields if name not in ("name", "tokens")}  # the step checks them
READING = ("seq_len", "tokens", "samples", "columns", "seed")


class Arguments(OpeningOptions, total=False):
    """What `compress` takes by name besides model, data and recipe.

    Short for settings of steps: one budget (`macs`, `params`, `latency`, `total_macs`, `max_kl`, `size`), `bits`,
    `group` and `tables`, `refine`, `heal` (minutes), `head_data`, `vocab` (tokens to keep, or as a float the share of
    the text they cover) and `vocab_data`, and for long texts `k`, `kind`, `window`, `keep_exact`, `steps`. Every other
    setting is `settings={"cut.ridge": 0.01}`. Of the data: `tokens` to fit on, `samples`, `columns`, `seq_len`, `seed`,
    `only_data` (no broad text is added), `eval_data` to measure on as well. `format` is ragged or plain, and
    `runtime` (`export.serving`) says where the result is to open, which decides it and what is cut; `timing` measures
    latency.
    """

    macs: float | None
    params: float | None
    latency: float | None
    total_macs: float | None
    max_kl: float | None
    size: int | None
    bits: int | None
    group: int | None
    tables: bool | None
    refine: bool | None
    head_data: str | Path | None
    vocab: int | float | None
    vocab_data: str | Path | None
    heal: float | None
    k: int | None
    kind: str | None
    window: int | None
    keep_exact: int | None
    steps: int | None
    settings: dict[str, Any]
    seq_len: int | None
    tokens: int | None
    samples: int | None
    columns: Sequence[str] | None
    seed: int
    only_data: bool
    eval_data: Sequence[Source] | None
    format: str
    runtime: str | None
    timing: bool


@check_arguments(model=MODEL_OR_LOADED, recipe=RECIPE)
@torch.inference_mode(False)  # gradients are needed, whatever the caller is in
def compress(
    model: str | Path | PreTrainedModel | Loaded,
    data: Source | Tensor = UNNAMED,
    *,
    recipe: str | Path | Recipe = "balanced",
    processor: Any = None,
    progress: Progress = silent,
    **arguments: Unpack[Arguments],
) -> Result:
    """Shrink `model` by a recipe: to a fraction of its block MACs, for one, without retraining.

    `model` is a folder, a hub id, `demo:smollm2`, or a model in memory (give its tokenizer as `processor`), opened as
    `models.opening.Opening` says. `data` is what to calibrate on: a file, `builtin`, a data set's name, texts, token
    ids, or a folder of images (none for the recipe `lossless`). Broad text is added
    (docs/calibration-data.md). `arguments` are those of `Arguments`. Cost: an elimination per width.

    >>> result = slimformer.compress("llama", "text.txt", macs=0.6, tokens=600, timing=False)
    >>> result.save("compressed").name, result.plan.macs <= 0.6
    ('compressed', True)
    """
    given: dict[str, Any] = dict(arguments)
    reading = {name: given.pop(name) for name in READING if name in given}
    others, broad = given.pop("eval_data", None) or (), not given.pop("only_data", False)
    timing, length = given.pop("timing", True), reading.get("seq_len")
    runtime = given.get("runtime")
    run, chosen = _opened(model, recipe, given, processor, length)
    run = replace(run, source=data, progress=progress)
    run, measured = _with_data(run, chosen, {**reading, "broad": broad}, others)
    with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
        run = run_steps(replace(run, folder=Path(scratch)), chosen)
        served = [] if runtime is None else [serving_note(run, runtime, _unconstrained(recipe, chosen, runtime))]
    run, report = assess(run, chosen.name, fitted=any(step.fits for step in chosen.steps), timing=timing)
    for step in chosen.steps:
        run, report = step.finish(run, report)
    small = replace(run.loaded, model=run.model)
    report = with_other_data(report, run.original or run.loaded, small, measured, known=report.data)
    report = replace(report, warnings=[*report.warnings, *served])
    return Result(run.model, run.decided, report, run.loaded, run.quantized, run.parts)


def preview(
    model: str | Path | PreTrainedModel, *, recipe: str | Path | Recipe = "balanced", processor: Any = None,
    seq_len: int | None = None, **arguments: Any,
) -> tuple[Run, Plan | list[dict[str, Any]]]:  # fmt: skip
    """What `compress` would do, said without data: a plan in which every block loses the same share, or what each
    lossless rewrite would save. Cost: opening the model."""
    run, chosen = _opened(model, recipe, arguments, processor, seq_len)
    return run, chosen.steps[0].preview(run)


def _opened(
    model: Any, recipe: str | Path | Recipe, given: dict[str, Any], processor: Any, length: int | None
) -> tuple[Run, Recipe]:
    """The start of a run, and its recipe; what is impossible is refused before data are read."""
    written, runtime, seconds = load_recipe(recipe), given.get("runtime"), dict[str, float]()
    given = constrained(dict(given), cuts=any(isinstance(step, Cut) for step in written.steps))
    given.pop("runtime", None)
    opening = opening_in(given)
    format, settings = given.pop("format", "ragged"), given.pop("settings", None) or {}
    chosen = with_settings(with_arguments(written, given), settings)
    for step in chosen.steps:
        step.require_complete()
    with timed(seconds, "load"):
        loaded = open_or_discover(model, processor, opening)
    if runtime is not None:
        require_servable(loaded, runtime)
    run = Run(loaded, loaded.model, format, length, seconds=seconds, before=chosen.before_cut, after=chosen.after_cut)
    require_known_stacks(chosen.steps, describe(run.dense))
    for step in chosen.steps:
        step.require_possible(run)
        if isinstance(step, Heal) and step not in run.after:
            step.require_one_turn()
    return run, chosen


def _unconstrained(recipe: str | Path | Recipe, chosen: Recipe, runtime: str) -> Cut | None:
    """The cut as it would be if the result had to open nowhere in particular; none where nothing is cut."""
    cuts, before = ([step for step in each.steps if isinstance(step, Cut)] for each in (chosen, load_recipe(recipe)))
    if not cuts:
        return None
    return cuts[0].model_copy(update={name: getattr(before[0], name) for name in place_named(runtime).cut})


@check_arguments(model=ON_DISK, recipe=RECIPE)
def compress_streamed(
    model: str | Path,
    folder: str | Path,
    data: Source | Tensor = UNNAMED,
    *,
    memory: int,
    recipe: str | Path | Recipe = "balanced",
    **arguments: Any,
) -> Streamed:
    """Shrink a checkpoint that does not fit into memory, block by block, and write it to `folder`.

    `arguments` are those of `compress` as far as they can be had block by block, and `force`, `verify`, `progress`,
    `say` as in `steps.streaming.stream`. Cost: as `compress`, and reading the weights once for every pass.

    >>> how = {"tokens": 600, "refine": False, "memory": 2_000_000_000}
    >>> slimformer.compress_streamed("llama", "by-blocks", "text.txt", macs=0.6, **how).report.recipe
    'balanced'
    """
    request, others = _by_blocks(model, data, memory, recipe, arguments)
    return stream(request, folder, **others)


def foresee_streamed(
    model: str | Path, data: Source | Tensor = UNNAMED, *, memory: int, recipe: str | Path | Recipe = "balanced",
    **arguments: Any,
) -> Foreseen:  # fmt: skip
    """What `compress_streamed` would keep, and the memory it would take; refused where it would be."""
    return foresee(_by_blocks(model, data, memory, recipe, arguments)[0])


def _by_blocks(
    model: str | Path, data: Source | Tensor, memory: int, recipe: str | Path | Recipe, arguments: dict[str, Any]
) -> tuple[Request, dict[str, Any]]:
    """What is asked for, and the arguments that do not change the result; what needs the whole model is refused."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if given.get("runtime") is not None:
        raise NotEnoughMemory(
            f"{option('runtime')} looks at the model whole; with {option('memory')} give {option('format')} and "
            "settings of the cut instead"
        )
    chosen = with_settings(load_recipe(recipe), given.pop("settings", {}))
    require_streamable(chosen.name, [NAMES[type(step)] for step in chosen.steps])
    written = {name: value for name in BUDGETS if (value := getattr(cut_settings(chosen), name)) is not None}
    require_streaming_possible({**written, **given})
    own: dict[str, Any] = {name: given.pop(name) for name in ("macs", "params", "refine") if name in given}
    chosen = with_arguments(chosen, own)
    settings = cut_settings(chosen)
    others = {name: value for name, value in given.items() if name not in ("timing", "eval_data")}
    reading = {name: others.pop(name) for name in READING if name in others}
    length, broad = reading.pop("seq_len", None), not others.pop("only_data", False)
    opening = opening_in(others)
    budget = budget_of(macs=settings.macs, params=settings.params)
    refined = any(isinstance(step, Refine) for step in chosen.steps)
    request = Request(
        model, data, memory, budget, settings, others.pop("format", "ragged"), length, refined, opening,
        {**reading, "broad": broad},
    )  # fmt: skip
    return request, others


@check_arguments(model=MODEL_OR_LOADED)
def quantize(
    model: str | Path | PreTrainedModel | Loaded, data: Source | Tensor = UNNAMED, *, bits: int = 4, **arguments: Any
) -> Result:
    """Store the linear layers of all blocks in 8 or 4 bits: a recipe of one step, `steps.quantize.Quantize`, whose
    other settings (`group`, `method`, `symmetric`, `tables`) are arguments, too; the rest as for `compress`.

    Weights w become s·q with whole numbers q of so many bits, and one step s for each `group` of a row; with `gptq`
    later columns make up for the rounding of earlier ones. Cost: one factorisation for each matrix.

    >>> result = slimformer.quantize("llama", "text.txt", bits=8, group=32, tokens=600, timing=False)
    >>> result.report.recipe
    '8-bit'
    """
    own: dict[str, Any] = {
        name: arguments.pop(name) for name in ("group", "method", "symmetric", "tables") if name in arguments
    }
    step: dict[str, dict[str, Any]] = {"quantize": {"bits": bits, **own}}
    return compress(model, data, recipe=recipe_of(f"{bits}-bit", "fewer bits, all widths kept", step), **arguments)


@check_arguments(model=MODEL_OR_LOADED)
def sparsify(
    model: str | Path | PreTrainedModel | Loaded, data: Source | Tensor = UNNAMED, *, pattern: str = "2:4",
    **arguments: Any,
) -> Result:  # fmt: skip
    """Set weights of the linear layers of all blocks to zero and refit the others: a recipe of one step,
    `steps.sparsify.Sparsify`, whose `method` is an argument, too; the rest as for `compress`.

    The folder is no smaller: zeros are stored as zeros. Cost: one factorisation for each matrix.

    >>> result = slimformer.sparsify("llama", "text.txt", pattern="2:4", tokens=600, timing=False)
    >>> float((result.model.model.layers[0].mlp.up_proj.weight == 0).float().mean())
    0.5
    """
    own = {"method": arguments.pop("method")} if "method" in arguments else {}
    step: dict[str, dict[str, Any]] = {"sparsify": {"pattern": pattern, **own}}
    return compress(model, data, recipe=recipe_of(f"sparse-{pattern}", "zeros, all widths kept", step), **arguments)


@check_arguments(model=MODEL_OR_LOADED, teacher=MODEL_OR_LOADED, out=replace(PATH, optional=True), **HEALING)
def heal(
    model: str | Path | PreTrainedModel | Loaded,
    data: Source | Tensor = UNNAMED,
    *,
    teacher: str | Path | PreTrainedModel | Loaded,
    out: str | Path | None = None,
    progress: Progress = silent,
    **arguments: Any,
) -> Result:
    """Win back what cutting lost: let `model` learn from the dense `teacher` it came from, on text without labels.

    `arguments` are the settings of `steps.heal.Heal` (`minutes`, `tokens` or `epochs`, `phases`, `train`, …), those of
    the data but `tokens`, `timing`, `processor`, `force` and `verify`. With `out` the result is saved there, and the
    same call goes on where a killed one was. Where nothing is better, the weights are those that were given.

    >>> how = {"epochs": 1, "phases": "global", "verify": False}
    >>> report = slimformer.heal("smaller", "text.txt", teacher="llama", out="healed", **how).report
    >>> won = report.healing["won"]["home"]  # divergence to the dense model, on text that was held out
    >>> won["after"] <= won["before"]
    True
    """
    given = dict(arguments)
    own = {name: given.pop(name) for name in Heal.model_fields if name in given and name != "name"}
    chosen = recipe_of("heal", "learned from the dense model", {"heal": own})
    (step,) = (each for each in chosen.steps if isinstance(each, Heal))
    step.require_complete()
    step.require_one_turn()
    opening = opening_in(given)
    processor, timing = given.pop("processor", None), given.pop("timing", False)
    writing = {name: given.pop(name) for name in ("force", "verify") if name in given}
    small, dense = (
        open_for_work(model, processor, replace(opening, revision=None)),
        open_for_work(teacher, processor, opening),
    )
    require_known_stacks(chosen.steps, describe(small.model))
    run = healing_run(small, dense, length=given.get("seq_len"))
    run = replace(run, source=data, progress=progress)
    broad = not given.pop("only_data", False)
    run, _ = _with_data(run, chosen, {**given, "broad": broad}, ())
    with healing_work(run, step, out) as folder:
        run = step.run(replace(run, folder=folder))
        lead_only()
        run, report = assess(run, run.decided.recipe, fitted=True, timing=timing)
        result = Result(run.model, run.decided, report, belonging_to(small, dense))
        if out is not None:
            result.save(out, **writing)
    return result


def run_steps(run: Run, recipe: Recipe) -> Run:
    """The run after all steps; those after a cut are carried out by it, at every budget it tries."""
    for step in recipe.steps:
        run = step.run(run)
        if isinstance(step, Cut):
            break
    return run


def _with_data(run: Run, recipe: Recipe, reading: dict[str, Any], others: Sequence[Source]) -> tuple[Run, list[Data]]:
    """The run with its data, where any step reads some, and other data to measure on."""
    if not recipe.reads_data:
        return run, []
    broad, architecture = reading.pop("broad"), describe(run.dense)
    lengths = [length for step in recipe.steps if (length := step.sequence_length(run)) is not None]
    how = {**reading, "seq_len": lengths[0] if lengths else None}

    def read(source: Source | Tensor, purpose: Purpose = "calibration") -> Data:
        request = Reading(purpose=purpose, broad=broad and purpose == "calibration", **how)
        return gather(source, run.dense, run.loaded.processor, architecture, request)

    with run.timed("data"):
        data, measured = read(run.source), [read(each, purpose="evaluation") for each in others]
    with run.timed("narrowness"):
        data = narrowness_noted(run.dense, data)
    return replace(run, data=data), measured

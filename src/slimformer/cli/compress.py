"""`slimformer compress`: the whole way from a model to a smaller one in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.cli.inputs import (
    column_names,
    fraction_asked,
    joined,
    parts_of,
    priced_budget,
    require_data,
    require_model,
    require_place,
    require_precision,
    size_in_bytes,
    with_precision,
)
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    DataOption,
    DryRun,
    Dtype,
    EvalData,
    Force,
    Format,
    Groups,
    HeadData,
    KeepExact,
    KeptBits,
    KeptGroup,
    Kind,
    Latency,
    Macs,
    MaxKl,
    MaybeOut,
    Memory,
    Model,
    OnlyData,
    OpeningAsked,
    Params,
    Quiet,
    RecipeName,
    Refine,
    Samples,
    Seed,
    SeqLen,
    Size,
    Steps,
    Timing,
    Tokens,
    Track,
    Window,
    opens_model,
)
from slimformer.cli.output import emit, out, saved, show_notes, show_result
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError
from slimformer.plan.asked import require_budget_allowed, require_format, require_one
from slimformer.report.track import tracker

if TYPE_CHECKING:
    from slimformer.models.opening import Opening

GROUP = 32  # weights that share a step, where nothing is said
EXAMPLES = (
    "slimformer compress demo:smollm2 --macs 0.8 --out smaller\n\n"
    "A classifier: slimformer compress ./bert --macs 0.6 --data train.tsv --columns sentence --out smaller\n\n"
    "Long texts: slimformer compress demo:smollm2 --recipe long-context --k 128 --out long\n\n"
    "What changes no output, without budget and data: slimformer compress ./bert --recipe lossless --out smaller\n\n"
    "A vision model: slimformer compress ./vit --macs 0.5 --data images --format plain --out smaller\n\n"
    "Larger than memory: slimformer compress ./llama --macs 0.5 --memory 4GB --no-refine --out smaller"
)


@opens_model
def compress(
    model: Model,
    macs: Macs = None,
    params: Params = None,
    latency: Latency = None,
    max_kl: MaxKl = None,
    size: Size = None,
    out_folder: MaybeOut = None,
    data: DataOption = None,
    only_data: OnlyData = False,
    eval_data: EvalData = None,
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    opening: OpeningAsked = AS_USUAL,
    dtype: Dtype = "float32",
    refine: Refine = None,
    head_data: HeadData = None,
    bits: KeptBits = None,
    group: KeptGroup = None,
    timing: Timing = True,
    track: Track = None,
    k: Groups = None,
    window: Window = None,
    kind: Kind = None,
    keep_exact: KeepExact = None,
    steps: Steps = None,
    memory: Memory = None,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Shrink MODEL to a fraction of its block MACs and save it: calibrate, plan, apply, evaluate, verify."""
    from slimformer.plan.recipe import load_recipe

    chosen, name = load_recipe(recipe), joined(data)
    alone: dict[str, Any] = {"eval_data": eval_data or (), "refine": refine, "head_data": head_data}
    widths = {**alone, **_storage_asked(chosen, bits, group, size, memory), "format": format}
    context = _context_asked(chosen, alone, k=k, window=window, kind=kind, keep_exact=keep_exact, steps=steps)
    asked, seen = _budget_asked(chosen, macs, params, latency, max_kl, size), {"memory": memory, "opening": opening}
    require_format(format)
    if dry_run:
        return _show_dry_run(model, asked, widths | seen, chosen, name, seq_len, as_json, quiet)
    record, out_folder = tracker(track), _require_out(out_folder, force, model, name, alone)
    how = {
        "recipe": chosen, "seq_len": seq_len, "tokens": tokens, "samples": samples, "seed": seed, "timing": timing,
        "columns": column_names(columns), "only_data": only_data, **asked,
        **vars(_opening_for(model, name, alone, opening, dtype)),
    }  # fmt: skip
    if memory is not None:
        return record("compress", _by_blocks(model, out_folder, name, memory, how, widths, force, as_json, quiet))
    with showing_progress(hidden=quiet or as_json) as progress:
        report = saved(_made(model, name, how, widths, context, progress), out_folder, force, progress).report
    record("compress", report.to_dict())
    show_result(report, out_folder, as_json, quiet)


def _budget_asked(
    recipe: Any,
    macs: str | None,
    params: str | None,
    latency: str | None,
    max_kl: float | None,
    size: str | None = None,
) -> dict[str, Any]:
    """The one budget that was given, by its name; none for a recipe that changes no output."""
    if recipe.rewrites:
        require_budget_allowed(recipe, given=(macs, params, latency, max_kl, size) != (None,) * 5)
        return {}
    if recipe.sequence != "none":
        if (macs, params, latency, size) != (None,) * 4:
            raise SlimformerError(f"the recipe {recipe.name!r} keeps every weight; give --k, not --macs or --params")
        return {} if max_kl is None else {"max_kl": max_kl}
    texts = {"macs": macs, "params": params, "latency": latency, "max_kl": max_kl, "size": size}
    by = require_one(texts)
    if by == "size":
        return {"size": size_in_bytes("--size", str(size))}
    if by == "max_kl":
        return {"max_kl": max_kl}
    return fraction_asked(macs, params, latency)


def _storage_asked(
    recipe: Any, bits: int | None, group: int | None, size: str | None, memory: str | None
) -> dict[str, Any]:
    """Bits and groups to store in, as given; refused, before a model is opened, where they mean nothing, and so is a
    memory that is no size."""
    if memory is not None:
        size_in_bytes("--memory", memory)
    given = {"--bits": bits, "--group": group, "--size": size}
    flags = ", ".join(flag for flag, value in given.items() if value is not None)
    if flags and (recipe.rewrites or recipe.depth != "none" or recipe.sequence != "none"):
        raise SlimformerError(
            f"{flags}: not with the recipe {recipe.name!r}, which cuts no widths; run `slimformer quantize` after it"
        )
    if group is not None and bits is None and size is None:
        raise SlimformerError("--group says how bits are stored; give --bits 8, --bits 4 or a --size with it")
    return {"bits": bits, "group": GROUP if group is None else group}


def _context_asked(recipe: Any, alone: dict[str, Any], **given: Any) -> dict[str, Any] | None:
    """What was said about groups of keys; nothing may be said of them under another recipe, nor `alone` with them."""
    said = {name: value for name, value in given.items() if value is not None}
    if recipe.sequence == "none":
        if said:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in said)
            raise SlimformerError(f"{flags}: for the recipe long-context only; give --recipe long-context")
        return None
    if refused := [f"--{name.replace('_', '-')}" for name, value in alone.items() if value]:
        raise SlimformerError(f"{', '.join(refused)}: not with the recipe {recipe.name!r}; leave it out")
    return {"k": 128, **said}


def _require_out(folder: Path | None, force: bool, model: str, data: str, others: dict[str, Any]) -> Path:
    """Where to write; refused, before the work, where nothing is said, or where it is taken or read from."""
    if folder is None:
        raise SlimformerError("compress needs a folder to write to; give --out DIR (or --dry-run to write nothing)")
    require_place(folder, force, model, others["head_data"], *parts_of(data), *others["eval_data"])
    return folder


def _opening_for(model: str, data: str, others: dict[str, Any], opening: OpeningAsked, dtype: str) -> Opening:
    """How to open the model; model and data that are not there are refused first, before torch is imported."""
    require_precision(dtype)
    require_model(model, opening)
    require_data(data, *others["eval_data"], others["head_data"])
    return with_precision(opening, dtype)


def _made(
    model: str, data: str, how: dict[str, Any], widths: dict[str, Any], context: dict[str, Any] | None, progress: Any
) -> Any:
    """The smaller model: cut as `widths` says, or with the groups of keys of a `context`."""
    from slimformer.compress import compress, group_keys

    if context is not None:
        return group_keys(model, data, progress=progress, **how, **context)
    return compress(model, data, progress=progress, **how, **widths)


def _show_dry_run(
    model: str, asked: dict[str, Any], how: dict[str, Any], recipe: Any, data: str, seq_len: int | None, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """What would be kept, without reading data and without writing anything; where `how` has a memory to keep within,
    without reading weights either."""
    require_model(model, how["opening"])
    if recipe.rewrites:
        return _show_offers(model, recipe, how, seq_len, as_json, quiet)
    if recipe.sequence != "none":
        raise SlimformerError(f"--dry-run shows sizes, and the recipe {recipe.name!r} changes none")
    if "max_kl" in asked or "size" in asked:
        raise SlimformerError("--dry-run shows sizes for a budget; give --macs, --params or --latency")
    if how["bits"] is not None:
        raise SlimformerError("--dry-run shows which widths are kept, not how they are stored; leave --bits out")
    format = how["format"]
    if how["memory"] is not None:
        given = {**asked, "recipe": recipe, "format": format, "seq_len": seq_len, "refine": how["refine"]}
        given["opening"] = how["opening"].resolve()
        return _show_by_blocks(model, data, how["memory"], given, as_json, quiet)

    from slimformer.calibrate.gather import sequence_length
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.report.console import kept, plan_table
    from slimformer.steps import stages

    loaded = load_model(model, how["opening"].resolve())
    budget = priced_budget(asked, loaded.model, sequence_length(loaded.model, describe(loaded.model), seq_len))
    made = stages.even_plan(loaded.model, budget=budget, recipe=recipe, format=format, seq_len=seq_len)
    emit(json.loads(made.to_json()), as_json, quiet, lambda: out.print(kept(plan_table(describe(loaded.model), made))))


def _show_by_blocks(
    model: str, data: str, memory: str, asked: dict[str, Any], as_json: bool, quiet: bool
) -> None:  # fmt: skip
    """What would be kept and the memory it would take; refused as the work would be."""
    from slimformer.report.console import kept, plan_table
    from slimformer.steps.streaming import foresee
    from slimformer.steps.streaming_limits import require_streaming_possible

    require_streaming_possible(asked)
    seen = foresee(model, data, memory=size_in_bytes("--memory", memory), **asked)

    def tables() -> None:
        out.print(kept(plan_table(seen.architecture, seen.plan)))
        out.print(f"memory: {seen.estimate}; allowed {memory}", markup=False, highlight=False, soft_wrap=True)

    emit({**json.loads(seen.plan.to_json()), "memory": seen.estimate.to_json()}, as_json, quiet, tables)


def _by_blocks(
    model: str, folder: Path, data: str, memory: str, how: dict[str, Any], widths: dict[str, Any], force: bool,
    as_json: bool, quiet: bool,
) -> dict[str, Any]:  # fmt: skip
    """Compress a model that is read block by block, and show the result; the report."""
    from slimformer.steps.streaming import compress_streamed
    from slimformer.steps.streaming_limits import require_streaming_possible, streamable

    streamable(how["recipe"])
    needs_all = {name: widths[name] for name in ("eval_data", "head_data", "bits")}
    require_streaming_possible(how, **needs_all)
    asked = {name: value for name, value in how.items() if name != "timing"}
    hidden = quiet or as_json
    with showing_progress(hidden=hidden) as progress:
        done = compress_streamed(
            model, folder, data, memory=size_in_bytes("--memory", memory), **asked,
            format=widths["format"], refine=widths["refine"], force=force, progress=progress,
            say=lambda line: show_notes([line], hidden=hidden),
        )  # fmt: skip
    show_result(done.report, folder, as_json, quiet)
    return done.report.to_dict()


def _show_offers(model: str, recipe: Any, how: dict[str, Any], seq_len: int | None, as_json: bool, quiet: bool) -> None:
    from slimformer.calibrate.gather import sequence_length
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.nn.long_context import require_every_key
    from slimformer.report.console import savings_table
    from slimformer.rewrite.exact import Scope
    from slimformer.rewrite.lossless import offers

    format = how["format"]
    loaded = load_model(model, how["opening"].resolve())
    require_every_key(loaded.model)
    architecture = describe(loaded.model)
    found = [
        offer.to_json()
        for offer in offers(
            loaded.model, architecture, Scope(format, loaded.dtype, recipe.multiple_of),
            seq_len=sequence_length(loaded.model, architecture, seq_len), names=recipe.rewrites,
        )
    ]  # fmt: skip
    emit({"lossless": found}, as_json, quiet, lambda: out.print(savings_table(found)))

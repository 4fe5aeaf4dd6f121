"""What `slimformer compress` needs around its work: which budget was asked for, a look without doing, the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from slimformer.cli.frontier import emit, saved_line
from slimformer.cli.terminal import budget as budget_from
from slimformer.cli.terminal import progress_bars, size_in_bytes
from slimformer.errors import SlimformerError
from slimformer.plan import require_budget_allowed
from slimformer.plan.budget import require_one

out, err = Console(), Console(stderr=True)
GROUP = 32  # weights that share a step, where nothing is said


def budget_asked(
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
    budget = budget_from(macs, params, latency)
    return {budget.by: budget.fraction}


def storage_asked(recipe: Any, bits: int | None, group: int | None, size: str | None) -> dict[str, Any]:
    """Bits and groups to store in, as given; refused, before a model is opened, where they mean nothing."""
    given = {"--bits": bits, "--group": group, "--size": size}
    flags = ", ".join(flag for flag, value in given.items() if value is not None)
    if flags and (recipe.rewrites or recipe.depth != "none" or recipe.sequence != "none"):
        raise SlimformerError(
            f"{flags}: not with the recipe {recipe.name!r}, which cuts no widths; run `slimformer quantize` after it"
        )
    if group is not None and bits is None and size is None:
        raise SlimformerError("--group says how bits are stored; give --bits 8, --bits 4 or a --size with it")
    return {"bits": bits, "group": GROUP if group is None else group}


def context_asked(recipe: Any, alone: dict[str, Any], **given: Any) -> dict[str, Any] | None:
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


def require_place(folder: Path | None, force: bool, *inputs: str | None) -> Path:
    """Where to write; refused, before the work, where nothing is said, and a folder that is taken or is read from."""
    from slimformer.checkpoint.atomic import require_free
    from slimformer.steps.stages import require_apart

    if folder is None:
        raise SlimformerError("compress needs a folder to write to; give --out DIR (or --dry-run to write nothing)")
    require_apart(folder, *inputs)
    require_free(folder, force)
    return folder


def made(
    model: str, data: str, how: dict[str, Any], widths: dict[str, Any], context: dict[str, Any] | None, progress: Any
) -> Any:
    """The smaller model: cut as `widths` says, or with the groups of keys of a `context`."""
    from slimformer.compress import compress, group_keys

    if context is not None:
        return group_keys(model, data, progress=progress, **how, **context)
    return compress(model, data, progress=progress, **how, **widths)


def saved(result: Any, folder: Path, force: bool, progress: Any, *, verify: bool = True) -> Any:
    """The result, once it is written and verified in a fresh process."""
    progress("save and verify", 0, 1)
    result.save(folder, force=force, verify=verify)
    progress("save and verify", 1, 1)
    return result


def show_dry_run(
    model: str, asked: dict[str, Any], how: dict[str, Any], recipe: Any, data: str, seq_len: int | None, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """What would be kept, without reading data and without writing anything; where `how` has a memory to keep within,
    without reading weights either."""
    from slimformer.calibrate.gather import sequence_length
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.plan.budget import budget_of
    from slimformer.report.console import kept, plan_table
    from slimformer.steps import stages
    from slimformer.steps.workbench import priced

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
        given["opening"] = how["opening"]
        return _show_by_blocks(model, data, how["memory"], given, as_json, quiet)
    loaded = load_model(model, how["opening"])
    budget = priced(budget_of(**asked), loaded.model, sequence_length(loaded.model, describe(loaded.model), seq_len))
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


def show_result(report: Any, folder: Path, as_json: bool, quiet: bool) -> None:
    """The report of a model that was made, and where it is."""
    from slimformer.report.console import show

    def tables() -> None:
        show(report, out)
        saved_line(folder, report)

    emit(report.to_dict(), as_json, quiet, tables)


def by_blocks(
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

    def say(line: str) -> None:
        if not hidden:
            err.print(f"note: {line}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    with progress_bars(err, hidden=hidden) as progress:
        done = compress_streamed(
            model, folder, data, memory=size_in_bytes("--memory", memory), **asked,
            format=widths["format"], refine=widths["refine"], force=force, progress=progress, say=say,
        )  # fmt: skip
    show_result(done.report, folder, as_json, quiet)
    return done.report.to_dict()


def _show_offers(model: str, recipe: Any, how: dict[str, Any], seq_len: int | None, as_json: bool, quiet: bool) -> None:
    from slimformer.calibrate.gather import sequence_length
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.nn.long_context import require_every_key
    from slimformer.plan import require_format
    from slimformer.report.console import savings_table
    from slimformer.rewrite.exact import Scope
    from slimformer.rewrite.lossless import offers

    format = how["format"]
    require_format(format)
    loaded = load_model(model, how["opening"])
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

"""What `slimformer compress` needs around its work: which budget was asked for, a look without doing, the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from slimformer.cli_front import emit, saved_line
from slimformer.errors import SlimformerError
from slimformer.plan import require_budget_allowed
from slimformer.shell import budget as budget_from
from slimformer.shell import progress_bars

out, err = Console(), Console(stderr=True)


def budget_asked(
    recipe: Any, macs: str | None, params: str | None, latency: str | None, max_kl: float | None
) -> dict[str, float]:
    """The one budget that was given, by its name; none for a recipe that changes no output."""
    if recipe.rewrites:
        require_budget_allowed(recipe, given=(macs, params, latency, max_kl) != (None,) * 4)
        return {}
    if max_kl is None:
        budget = budget_from(macs, params, latency)
        return {budget.by: budget.fraction}
    if (macs, params, latency) != (None, None, None):
        raise SlimformerError("--max-kl is a budget of its own; give it, or --macs, --params or --latency")
    return {"max_kl": max_kl}


def require_place(folder: Path, force: bool, *inputs: str | None) -> None:
    """Refuse, before the work, a folder that is taken or is read from."""
    from slimformer.checkpoint.atomic import require_free
    from slimformer.stages import require_apart

    require_apart(folder, *inputs)
    require_free(folder, force)


def show_dry_run(
    model: str, asked: dict[str, float], recipe: Any, format: str, seq_len: int | None, as_json: bool, quiet: bool
) -> None:
    """What would be kept, without reading data and without writing anything."""
    from slimformer import stages
    from slimformer.calibrate.gather import sequence_length
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.plan.budget import budget_of
    from slimformer.report.console import kept, plan_table
    from slimformer.workbench import priced

    if recipe.rewrites:
        return _show_offers(model, recipe, format, seq_len, as_json, quiet)
    if "max_kl" in asked:
        raise SlimformerError("--dry-run shows sizes for a budget; give --macs, --params or --latency")
    loaded = load_model(model)
    budget = priced(budget_of(**asked), loaded.model, sequence_length(loaded.model, describe(loaded.model), seq_len))
    made = stages.even_plan(loaded.model, budget=budget, recipe=recipe, format=format, seq_len=seq_len)
    emit(json.loads(made.to_json()), as_json, quiet, lambda: out.print(kept(plan_table(describe(loaded.model), made))))


def show_result(report: Any, folder: Path, as_json: bool, quiet: bool) -> None:
    """The report of a model that was made, and where it is."""
    from slimformer.report.console import show

    def tables() -> None:
        show(report, out)
        saved_line(folder, report)

    emit(report.to_dict(), as_json, quiet, tables)


def by_blocks(
    model: str, folder: Path, data: str, memory: str, asked: dict[str, float], device: str, others: dict[str, Any],
    how: dict[str, Any], force: bool, *, as_json: bool, quiet: bool,
) -> dict[str, Any]:  # fmt: skip
    """Compress a model that is read block by block, and show the result; the report."""
    from slimformer.plan.memory import bytes_of
    from slimformer.streaming import compress_streamed, require_streaming_possible

    require_streaming_possible(asked, device=device, **others)
    hidden = quiet or as_json

    def say(line: str) -> None:
        if not hidden:
            err.print(f"note: {line}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    with progress_bars(err, hidden=hidden) as progress:
        done = compress_streamed(
            model, folder, data, memory=bytes_of(memory), **how, force=force, progress=progress, say=say
        )  # fmt: skip
    show_result(done.report, folder, as_json, quiet)
    return done.report.to_dict()


def _show_offers(model: str, recipe: Any, format: str, seq_len: int | None, as_json: bool, quiet: bool) -> None:
    from slimformer.calibrate.gather import sequence_length
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.plan import require_format
    from slimformer.report.console import savings_table
    from slimformer.rewrite.exact import Scope
    from slimformer.rewrite.lossless import offers

    require_format(format)
    loaded = load_model(model)
    architecture = describe(loaded.model)
    found = [
        offer.to_json()
        for offer in offers(
            loaded.model, architecture, Scope(format, loaded.dtype, recipe.multiple_of),
            seq_len=sequence_length(loaded.model, architecture, seq_len), names=recipe.rewrites,
        )
    ]  # fmt: skip
    emit({"lossless": found}, as_json, quiet, lambda: out.print(savings_table(found)))

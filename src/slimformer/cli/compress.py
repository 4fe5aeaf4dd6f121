"""What `slimformer compress` needs around its work: what was asked for, a look without doing, the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from slimformer.cli.frontier import emit, saved_line
from slimformer.cli.terminal import fraction, progress_bars, size_in_bytes
from slimformer.errors import SlimformerError

out, err = Console(), Console(stderr=True)
FRACTIONS = ("macs", "params", "latency")


def asked_for(texts: dict[str, str | None], others: dict[str, Any], settings: list[str] | None) -> dict[str, Any]:
    """Arguments of `compress` from options: budgets, which are texts, all that is not left out, and --set step.key=…"""
    found: dict[str, Any] = {by: fraction(by, text) for by in FRACTIONS if (text := texts.get(by)) is not None}
    if (size := texts.get("size")) is not None:
        found["size"] = size_in_bytes("--size", size)
    given = {name: value for name, value in others.items() if value is not None}
    return {**found, **given, "settings": parsed_settings(settings or [])}


def parsed_settings(texts: list[str]) -> dict[str, Any]:
    """What `--set cut.ridge=0.01` says, by step and key; values as YAML reads them."""
    from slimformer.files.reading import parse_yaml

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or "." not in name:
            raise SlimformerError(f"--set {text!r} is not understood; give STEP.KEY=VALUE, e.g. cut.ridge=0.01")
        try:
            found[name.strip()] = parse_yaml(value)
        except ValueError as error:
            raise SlimformerError(f"--set {text!r}: {error}; give STEP.KEY=VALUE, e.g. cut.ridge=0.01") from None
    return found


def require_place(folder: Path | None, force: bool, *inputs: str | None) -> Path:
    """Where to write; refused, before the work, where nothing is said, and a folder that is taken or is read from."""
    from slimformer.checkpoint.atomic import require_free
    from slimformer.steps.result import require_apart

    if folder is None:
        raise SlimformerError("compress needs a folder to write to; give --out DIR (or --dry-run to write nothing)")
    require_apart(folder, *inputs)
    require_free(folder, force)
    return folder


def saved(result: Any, folder: Path, force: bool, progress: Any, *, verify: bool = True) -> Any:
    """The result, once it is written and verified in a fresh process."""
    progress("save and verify", 0, 1)
    result.save(folder, force=force, verify=verify)
    progress("save and verify", 1, 1)
    return result


def show_dry_run(model: str, asked: dict[str, Any], as_json: bool, quiet: bool) -> None:
    """What would be kept, or saved, without reading data and without writing anything."""
    from slimformer.compress import preview
    from slimformer.models import describe
    from slimformer.plan import Plan
    from slimformer.report.console import kept, plan_table, savings_table

    if asked.get("bits") is not None:
        raise SlimformerError("--dry-run shows which widths are kept, not how they are stored; leave --bits out")
    unused = ("tokens", "samples", "columns", "seed", "only_data", "eval_data", "timing")
    run, found = preview(model, **{name: value for name, value in asked.items() if name not in unused})
    if isinstance(found, Plan):
        table = plan_table(describe(run.dense), found)
        return emit(json.loads(found.to_json()), as_json, quiet, lambda: out.print(kept(table)))
    return emit({"lossless": found}, as_json, quiet, lambda: out.print(savings_table(found)))


def show_dry_run_by_blocks(
    model: str, data: str, memory: str, asked: dict[str, Any], as_json: bool, quiet: bool
) -> None:
    """What would be kept and the memory it would take, without reading weights."""
    from slimformer.compress import foresee_streamed
    from slimformer.report.console import kept, plan_table

    seen = foresee_streamed(model, data, memory=size_in_bytes("--memory", memory), **asked)

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
    model: str, folder: Path, data: str, memory: str, asked: dict[str, Any], shown: tuple[bool, bool, bool]
) -> dict[str, Any]:
    """Compress a model that is read block by block, and show the result; the report."""
    from slimformer.compress import compress_streamed

    force, as_json, quiet = shown
    hidden = quiet or as_json

    def say(line: str) -> None:
        if not hidden:
            err.print(f"note: {line}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    with progress_bars(err, hidden=hidden) as progress:
        done = compress_streamed(
            model, folder, data, memory=size_in_bytes("--memory", memory), **asked, force=force, progress=progress,
            say=say,
        )  # fmt: skip
    show_result(done.report, folder, as_json, quiet)
    return done.report.to_dict()

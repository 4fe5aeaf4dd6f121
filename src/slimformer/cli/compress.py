"""`slimformer compress`: the whole way from a model to a smaller one in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, kept_line, out, save_result, show_notes, show_result
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError
from slimformer.export.serving import place_named
from slimformer.plan.asked import BUDGETS, MEASURES, require_divergence, require_format, require_fraction, require_one
from slimformer.report.track import tracker

if TYPE_CHECKING:
    from slimformer.models.opening import Opening

UNTOLD = "predicted harm: not known without data; `slimformer calibrate`, then `slimformer plan`, tells it"
OF_DATA = ("tokens", "samples", "columns", "seed", "only_data", "eval_data", "timing")  # a dry run reads none
EXAMPLES = (
    "slimformer compress demo:smollm2 --macs 0.8 --out smaller\n\n"
    "A classifier: slimformer compress ./bert --macs 0.6 --data train.tsv --columns sentence --out smaller\n\n"
    "Long texts: slimformer compress demo:smollm2 --recipe long-context --k 128 --out long\n\n"
    "What changes no output, without budget and data: slimformer compress ./bert --recipe lossless --out smaller\n\n"
    "Learning from the dense model for a while: slimformer compress ./llama --macs 0.5 --heal 10m --out smaller\n\n"
    "A vision model: slimformer compress ./vit --macs 0.5 --data images --format plain --out smaller\n\n"
    "Fewer tokens, too: slimformer compress ./bert --macs 0.5 --vocab 16000 --bits 8 --data mine.txt --out smaller\n\n"
    "Larger than memory: slimformer compress ./llama --macs 0.5 --memory 4GB --no-refine --out smaller"
)


@opt.grouped
def compress(
    model: opt.Model,
    macs: opt.Macs = None,
    params: opt.Params = None,
    latency: opt.Latency = None,
    total_macs: opt.TotalMacs = None,
    max_kl: opt.MaxKl = None,
    size: opt.Size = None,
    out_folder: opt.MaybeOut = None,
    data: opt.DataOption = None,
    only_data: opt.OnlyData = False,
    eval_data: opt.EvalData = None,
    recipe: opt.RecipeName = "balanced",
    settings: opt.Setting = None,
    format: opt.Format = "ragged",
    runtime: opt.Target = None,
    reading: opt.Reading = opt.READING,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    dtype: opt.Dtype = "float32",
    refine: opt.Refine = None,
    heal: opt.HealFor = None,
    head_data: opt.HeadData = None,
    vocab: opt.Vocab = None,
    vocab_data: opt.VocabData = None,
    bits: opt.KeptBits = None,
    group: opt.KeptGroup = None,
    tables: opt.Tables = None,
    timing: opt.Timing = True,
    track: opt.Track = None,
    k: opt.Groups = None,
    window: opt.Window = None,
    kind: opt.Kind = None,
    keep_exact: opt.KeepExact = None,
    steps: opt.Steps = None,
    memory: opt.Memory = None,
    dry_run: opt.DryRun = False,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Shrink MODEL to a fraction of its block MACs and save it: calibrate, plan, apply, evaluate, verify."""
    from slimformer.recipes import fields_of, needs_budget

    file = fields_of(recipe)
    require_format(format)
    if runtime is not None:
        place_named(runtime)
    name = inputs.joined(data)
    texts = {"macs": macs, "params": params, "latency": latency, "total_macs": total_macs, "size": size}
    others = {"eval_data": (*(eval_data or ()), *([vocab_data] if vocab_data else ())), "head_data": head_data}
    given = {
        "max_kl": max_kl, "refine": refine, "heal": inputs.minutes(heal), "head_data": head_data, "bits": bits,
        "group": group, "tables": tables, "k": k, "window": window, "kind": kind, "keep_exact": keep_exact,
        "steps": steps,
        "vocab": None if vocab is None else inputs.vocabulary_size(vocab), "vocab_data": vocab_data,
    }  # fmt: skip
    short = _asked(texts, given, settings)
    if needs_budget(file, BUDGETS) and not any(
        key.startswith("cut.") and key[4:] in BUDGETS for key in short["settings"]
    ):
        require_one({name: short.get(name) for name in BUDGETS})
    if memory is not None:
        inputs.size_in_bytes("--memory", memory)
    place = None if dry_run else _require_out(out_folder, force, model, name, others)
    record = tracker(track)
    arguments = {
        "recipe": recipe, **_format(format, runtime), "only_data": only_data, "eval_data": eval_data, "timing": timing,
        **reading.arguments(), **short,
        **vars(_opening_for(model, name, {} if dry_run else others, opening, dtype)),
    }  # fmt: skip
    if place is None:
        return _show_dry_run(model, name, memory, arguments, shown)
    return record("compress", _make_and_save(model, place, name, memory, arguments, force, shown))


def _format(format: str, runtime: str | None) -> dict[str, Any]:
    """The format, unless it follows from where the result is to open; plain opens everywhere."""
    if runtime is None:
        return {"format": format}
    return {"runtime": runtime, **({"format": format} if format == "plain" else {})}


def _asked(texts: dict[str, str | None], given: dict[str, Any], settings: list[str] | None) -> dict[str, Any]:
    """Arguments of `compress` from options: budgets, which are texts, all that is not left out, and --set."""
    fractions = {by: text for by in (*MEASURES, "total_macs") if (text := texts.get(by)) is not None}
    budgets: dict[str, Any] = {by: inputs.fraction(by, text) for by, text in fractions.items()}
    for by, value in budgets.items():
        require_fraction(value, by)
    if given.get("max_kl") is not None:
        require_divergence(given["max_kl"])
    if (size := texts.get("size")) is not None:
        budgets["size"] = inputs.size_in_bytes("--size", size)
    others = {name: value for name, value in given.items() if value is not None}
    return {**budgets, **others, "settings": inputs.settings_in(settings or [])}


def _require_out(folder: Path | None, force: bool, model: str, data: str, others: dict[str, Any]) -> Path:
    """Where to write; refused, before the work, where nothing is said, or where it is taken or read from."""
    if folder is None:
        raise SlimformerError("compress needs a folder to write to; give --out DIR (or --dry-run to write nothing)")
    inputs.require_place(folder, force, model, others["head_data"], *inputs.parts_of(data), *others["eval_data"])
    return folder


def _opening_for(model: str, data: str, others: dict[str, Any], opening: opt.OpeningAsked, dtype: str) -> Opening:
    """How to open the model; model and data that are not there are refused first, before torch is imported."""
    inputs.require_precision(dtype)
    inputs.require_model(model, opening)
    if others:
        inputs.require_data(data, *others["eval_data"], others["head_data"])
    return inputs.with_precision(opening, dtype)


def _make_and_save(
    model: str, folder: Path, data: str, memory: str | None, arguments: dict[str, Any], force: bool, shown: opt.Shown
) -> dict[str, Any]:
    """Make the smaller model, save it and show its report, which is returned."""
    from slimformer.compress import compress, compress_streamed

    hidden = shown.hidden
    with showing_progress(hidden=hidden) as progress:
        if memory is None:
            report = save_result(compress(model, data, progress=progress, **arguments), folder, force, progress).report
        else:
            report = compress_streamed(
                model, folder, data, memory=inputs.size_in_bytes("--memory", memory), **arguments, force=force,
                progress=progress, say=lambda line: show_notes([line], hidden=hidden),
            ).report  # fmt: skip
    show_result(report, folder, shown)
    content: dict[str, Any] = report.to_dict()
    return content


def _show_dry_run(model: str, data: str, memory: str | None, arguments: dict[str, Any], shown: opt.Shown) -> None:
    """What would be kept, or saved, without reading data and without writing anything; within a memory, what it would
    take, without reading weights either."""
    from slimformer.compress import foresee_streamed, preview
    from slimformer.plan import Plan
    from slimformer.report.console import kept_table, plan_table, savings_table

    if arguments.get("bits") is not None:
        raise SlimformerError("--dry-run shows which widths are kept, not how they are stored; leave --bits out")
    if arguments.get("vocab") is not None:
        raise SlimformerError("--dry-run reads no data, and tokens are counted on some; leave --vocab out")
    if memory is not None:
        seen = foresee_streamed(model, data, memory=inputs.size_in_bytes("--memory", memory), **arguments)
        line = f"memory: {seen.estimate}; allowed {memory}"

        def tables() -> None:
            out.print(kept_table(plan_table(seen.architecture, seen.plan)))
            out.print(kept_line(seen.plan), UNTOLD, sep="\n", highlight=False, soft_wrap=True)
            out.print(line, markup=False, highlight=False, soft_wrap=True)

        content = {**json.loads(seen.plan.to_json()), "memory": seen.estimate.to_json()}
        return emit(content, shown, tables)
    run, forecast = preview(model, **{name: value for name, value in arguments.items() if name not in OF_DATA})
    if isinstance(forecast, Plan):
        return _show_forecast(run, forecast, shown)
    return emit({"lossless": forecast}, shown, lambda: out.print(savings_table(forecast)))


def _show_forecast(run: Any, plan: Any, shown: opt.Shown) -> None:
    """What every block keeps and what both models cost."""
    from dataclasses import asdict

    from slimformer.evaluate.assessment import foreseen
    from slimformer.models import describe
    from slimformer.report.console import kept_table, plan_table, sizes_table

    dense, small = foreseen(run.loaded, plan)

    def tables() -> None:
        out.print(kept_table(plan_table(describe(run.dense), plan)))
        out.print(sizes_table(f"{run.loaded.name} · {plan.recipe} · {plan.format}", dense, small, plan.seq_len))
        out.print(kept_line(plan), UNTOLD, sep="\n", highlight=False, soft_wrap=True)

    emit({**json.loads(plan.to_json()), "sizes": {"dense": asdict(dense), "small": asdict(small)}}, shown, tables)

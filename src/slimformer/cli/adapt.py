"""`slimformer adapt`: the head of a language model for another domain, in closed form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out
from slimformer.cli.terminal import showing_progress
from slimformer.heads.asked import require_adaptation
from slimformer.report.heads import show_adapted


@opt.grouped
def adapt(
    model: opt.Model,
    data: opt.DataOption,
    out_folder: opt.WithHead = None,
    source_data: Annotated[
        str, typer.Option("--source-data", metavar="DATA", help="text of the old domain, to see what is forgotten")
    ] = "",
    method: Annotated[str, typer.Option(metavar="NAME", help="bohning, discriminant or least-squares")] = "bohning",
    reading: opt.Reading = opt.READING,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Adapt the head of a language model to the domain of --data, in closed form.

    Perplexity before and after on what was held out of --data, on other text that is built in, and on --source-data.
    """
    name = inputs.joined(data)
    require_adaptation(method)
    if out_folder is not None:
        inputs.require_place(out_folder, force, model, *inputs.parts_of(name), source_data)
    inputs.require_inputs(model, name, opening, source_data or None)

    from slimformer.calibrate.builtin import BUILTIN
    from slimformer.heads import adapt as lm_adapt
    from slimformer.models.load import load_model

    loaded = load_model(model, opening.resolve())
    lm_adapt.require_language_model(loaded.model)
    read = inputs.read_data(loaded, name, reading, broad=True)
    splits = read.splits | read.own  # broad text is measured on, not fitted
    texts = {"domain": splits["report"], **{f"{BUILTIN}: {source}": part for source, part in read.other.items()}}
    if source_data:
        texts["source"] = inputs.read_data(loaded, source_data, reading, purpose="evaluation").splits["report"]
    with showing_progress(hidden=shown.hidden) as progress:
        progress("states", 0, 2)
        fit, select = (lm_adapt.states_of(loaded.model, splits[name]) for name in ("fit", "select"))
        progress("states", 2, 2)
        solved = lm_adapt.adapt_head(loaded.model, fit, select, method, progress=progress)
        adapted, warning = lm_adapt.with_head(loaded.model, solved.W)
        measured = lm_adapt.before_and_after(loaded.model, adapted, texts)
        report = {
            "slimformer_adapt": 1, "model": loaded.name, "method": method, "chosen": solved.chosen, "data": name,
            "source_data": source_data, "tokens": len(fit.t), "perplexity": measured,
            "warnings": [*([warning] if warning else ()), *lm_adapt.worse_elsewhere(measured)],
        }  # fmt: skip
        if out_folder is not None:
            _save_adapted(loaded, adapted, out_folder, report, force)
    emit(report, shown, lambda: show_adapted(report, out_folder, out))


def _save_adapted(loaded: Any, adapted: Any, folder: Path, report: dict[str, Any], force: bool) -> None:
    from slimformer.checkpoint import save as checkpoint
    from slimformer.checkpoint.atomic import writing

    adapted = adapted.to(loaded.dtype)
    with writing(folder, "checkpoint", force=force) as partial:
        checkpoint.write_model(adapted, partial)
        checkpoint.write_belongings(partial, loaded.processor, loaded.companions)
        (partial / "adapt.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        checkpoint.verify_reload(adapted, partial)

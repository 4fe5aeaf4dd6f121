"""`slimformer adapt`: the head of a language model for another domain, in closed form."""

from __future__ import annotations

from typing import Annotated

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

    from slimformer.verbs.solve import adapt as adapt_head

    with showing_progress(hidden=shown.hidden) as progress:
        adapted = adapt_head(
            model, name, source_data=source_data or None, out=out_folder, method=method, force=force,
            progress=progress, **reading.arguments(), **vars(opening.resolve()),
        )  # fmt: skip
    emit(adapted.report, shown, lambda: show_adapted(adapted.report, out_folder, out))

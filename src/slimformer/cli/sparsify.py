"""`slimformer sparsify`: zeros in place of weights."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import save_result, show_result
from slimformer.cli.terminal import showing_progress

PatternName = Annotated[
    str, typer.Option("--pattern", metavar="N:M|SHARE", help="2:4: two of four are zero; 0.5: half of all weights")
]
Sparsity = Annotated[
    str, typer.Option("--method", metavar="NAME", help="sparsegpt: the others make up for zeros; magnitude: no data")
]


@opt.grouped
def sparsify(
    model: opt.Narrowable,
    out_folder: opt.OutFolder,
    pattern: PatternName = "2:4",
    method: Sparsity = "sparsegpt",
    data: opt.DataOption = None,
    only_data: opt.OnlyData = False,
    reading: opt.Reading = opt.READING,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    timing: opt.Timing = False,
    verify: opt.Verify = True,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Set weights of all blocks to zero, two of four or a share anywhere, and refit the others.

    The zeros are stored as zeros: the folder is no smaller, and opens everywhere.
    """
    name = inputs.joined(data)
    inputs.require_place(out_folder, force, model, *inputs.parts_of(name))
    inputs.require_inputs(model, name, opening)

    from slimformer.compress import sparsify as make_smaller
    from slimformer.models.load import load_model
    from slimformer.steps.sparsify import pattern_of

    pattern_of(pattern)
    settings: dict[str, Any] = {"pattern": pattern, "method": method}
    loaded = load_model(model, opening.resolve())
    with showing_progress(hidden=shown.hidden) as progress:
        smaller = make_smaller(
            loaded, name, only_data=only_data, timing=timing, progress=progress, **settings, **reading.arguments()
        )
        save_result(smaller, out_folder, force, progress, verify=verify)
    show_result(smaller.report, out_folder, shown)

"""`slimformer quantize`: the same weights in fewer bits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import save_result, show_result
from slimformer.cli.terminal import showing_progress

Bits = Annotated[int, typer.Option(metavar="N", help="bits of a weight: 8 or 4")]
Group = Annotated[
    int, typer.Option(metavar="N", help="weights of a row that share a step: 32, 64 or 128; 0 for the whole row")
]
Rounding = Annotated[
    str, typer.Option("--method", metavar="NAME", help="gptq: later weights make up for earlier ones; nearest: no data")
]
Symmetric = Annotated[bool, typer.Option(help="steps to both sides of zero, or from the lowest weight to the highest")]


@opt.grouped
def quantize(
    model: opt.Narrowable,
    out_folder: opt.OutFolder,
    bits: Bits = 4,
    group: Group = 32,
    method: Rounding = "gptq",
    symmetric: Symmetric = True,
    tables: opt.Tables = None,
    data: opt.DataOption = None,
    only_data: opt.OnlyData = False,
    reading: opt.Reading = opt.READING,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    timing: opt.Timing = False,
    verify: opt.Verify = True,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Store the weights of all blocks in 8 or 4 bits, so that plain from_pretrained opens them.

    Heads of classes and norms stay, and without --tables embeddings, too. The fit part of --data is rounded on, the
    report part is measured on. Needs the extra `quant`.
    """
    name = inputs.joined(data)
    inputs.require_place(out_folder, force, model, *inputs.parts_of(name))
    inputs.require_inputs(model, name, opening)

    from slimformer.compress import quantize as make_smaller
    from slimformer.models.load import load_model
    from slimformer.steps.quantize import grid_of

    grid_of(bits, group)
    settings: dict[str, Any] = {
        "bits": bits, "group": group, "method": method, "symmetric": symmetric, "tables": bool(tables)
    }  # fmt: skip
    loaded = load_model(model, opening.resolve())
    with showing_progress(hidden=shown.hidden) as progress:
        smaller = make_smaller(
            loaded, name, only_data=only_data, timing=timing, progress=progress, **settings, **reading.arguments()
        )
        save_result(smaller, out_folder, force, progress, verify=verify)
    show_result(smaller.report, out_folder, shown)

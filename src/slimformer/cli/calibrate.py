"""`slimformer calibrate`: statistics of a model on data, from which any budget can be planned."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, show_notes
from slimformer.cli.terminal import showing_progress


@opt.grouped
def calibrate(
    model: opt.Model,
    out_folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="folder to write the statistics to")],
    data: opt.DataOption = None,
    only_data: opt.OnlyData = False,
    reading: opt.Reading = opt.READING,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    dtype: opt.Dtype = "float32",
    paths: opt.Paths = True,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """One pass over the data: write the moments of every width, from which any budget can be planned."""
    name = inputs.joined(data)
    inputs.require_precision(dtype)
    inputs.require_place(out_folder, force, model, *inputs.parts_of(name))
    inputs.require_inputs(model, name, opening)

    from slimformer.verbs.calibrate import calibrate as gather_statistics

    with showing_progress(hidden=shown.hidden) as progress:
        statistics = gather_statistics(
            model, name, out=out_folder, only_data=only_data, paths=paths, force=force, progress=progress,
            **reading.arguments(), **vars(inputs.with_precision(opening, dtype)),
        )  # fmt: skip
    show_notes(statistics.notes, hidden=shown.hidden)
    provenance = asdict(statistics.provenance)
    emit(provenance, shown, lambda: typer.echo(f"statistics of {provenance['model']} are in {out_folder}"))

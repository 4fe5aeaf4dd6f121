"""`slimformer calibrate`: statistics of a model on data, from which any budget can be planned."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
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

    from slimformer.calibrate.distributed import is_follower
    from slimformer.calibrate.metric import shared_metric
    from slimformer.calibrate.narrowness import narrowness_noted
    from slimformer.calibrate.store import open_statistics
    from slimformer.checkpoint.atomic import writing
    from slimformer.evaluate.data_notes import thin_data, unnamed_data
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.nn.replaced import require_uncut
    from slimformer.steps.calibration import calibrate as gather_moments
    from slimformer.steps.calibration import keep_probes, require_together

    loaded = load_model(model, inputs.with_precision(opening, dtype))
    require_uncut(loaded.model)
    batches = inputs.read_data(loaded, name, reading, broad=not only_data)
    require_together(loaded, batches)
    with showing_progress(hidden=shown.hidden):
        narrowness_noted(loaded.model, batches)
    place = TemporaryDirectory() if is_follower() else writing(out_folder, "statistics", force=force)
    with showing_progress(hidden=shown.hidden) as progress, place as folder:
        metric = shared_metric(loaded.model, batches.splits["fit"], seed=batches.seed, progress=progress)
        statistics = gather_moments(loaded, batches, Path(folder), metric=metric, joint=paths, progress=progress)
        keep_probes(loaded.model, statistics, batches.splits["select"], progress=progress)
    notes = [*batches.notes, *thin_data(describe(loaded.model), batches), *unnamed_data(batches.reading, batches.name)]
    show_notes(notes, hidden=shown.hidden)
    provenance = asdict(open_statistics(out_folder).provenance)
    emit(provenance, shown, lambda: typer.echo(f"statistics of {provenance['model']} are in {out_folder}"))

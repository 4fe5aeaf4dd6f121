"""Statistics of a model on data, from which a model at any budget can be made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import torch
from torch import Tensor

from slimformer.calibrate.distributed import is_follower
from slimformer.calibrate.documents import UNNAMED, Source
from slimformer.calibrate.metric import shared_metric
from slimformer.calibrate.narrowness import narrowness_noted
from slimformer.calibrate.store import Statistics, open_statistics
from slimformer.checkpoint.atomic import require_apart, require_free, writing
from slimformer.evaluate.data_notes import thin_data, unnamed_data
from slimformer.messages.arguments import PATH, YES_OR_NO, check_arguments
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.models.load import open_for_work
from slimformer.models.opening import opening_in
from slimformer.nn.replaced import require_uncut
from slimformer.steps.calibration import calibrate as gather_moments
from slimformer.steps.calibration import keep_probes, require_together
from slimformer.verbs.asked import MODEL_OR_LOADED, Model, ReadingOptions, read_for


class CalibrationOptions(ReadingOptions, total=False):
    """`only_data` adds no broad text, `paths` keeps what linear paths beside neurons
    need, `force` replaces older statistics; the others say how data are read and the model is opened."""

    only_data: bool
    paths: bool
    force: bool


@check_arguments(model=MODEL_OR_LOADED, out=PATH, paths=YES_OR_NO)
@torch.inference_mode(False)  # gradients are needed, whatever the caller is in
def calibrate(
    model: Model,
    data: Source | Tensor = UNNAMED,
    *,
    out: str | Path,
    progress: Progress = silent,
    **how: Unpack[CalibrationOptions],
) -> Statistics:
    """Write what `plan`, `cut`, `frontier` and `sweep` need of `model` and `data` to the folder `out`.

    For every width x the sums Σ x and Σ x xᵀ over the tokens, in float64; beside them what an error at each site costs
    at the outputs (one backward pass), and what cutting each site alone does (one pass for each). Cost: three to five
    forward passes over `tokens`; memory of one block's sums.

    >>> stats = slimformer.calibrate("llama", "text.txt", tokens=600, out="sums")
    >>> sorted(stats.provenance.tokens)
    ['certify', 'fit', 'report', 'select']
    """
    given: dict[str, Any] = dict(how)
    force, folder = given.pop("force", False), Path(out)
    require_apart(folder, model if isinstance(model, str | Path) else None)
    require_free(folder, force)
    loaded = open_for_work(model, given.pop("processor", None), opening_in(given))
    require_uncut(loaded.model)
    batches = read_for(loaded, data, given, broad=not given.get("only_data", False))
    require_together(loaded, batches)
    narrowness_noted(loaded.model, batches)
    with TemporaryDirectory() if is_follower() else writing(folder, "statistics", force=force) as place:
        metric = shared_metric(loaded.model, batches.splits["fit"], seed=batches.seed, progress=progress)
        statistics = gather_moments(
            loaded, batches, Path(place), metric=metric, joint=given.get("paths", True), progress=progress
        )
        keep_probes(loaded.model, statistics, batches.splits["select"], progress=progress)
    notes = [*batches.notes, *thin_data(describe(loaded.model), batches), *unnamed_data(batches.reading, batches.name)]
    return replace(open_statistics(folder), notes=tuple(notes))

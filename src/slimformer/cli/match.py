"""`slimformer match`: two models matched on pairs, in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out
from slimformer.cli.terminal import showing_progress
from slimformer.errors import DataNotFound
from slimformer.heads.asked import MAPS, is_features, require_maps
from slimformer.report.heads import show_match

Side = Annotated[
    str, typer.Option("--source", metavar="FEATURES|MODEL", help="a .safetensors or .npy file of rows, or a model")
]
Side2 = Annotated[str, typer.Option("--target", metavar="FEATURES|MODEL", help="the same for the other side")]
PairData = Annotated[
    str,
    typer.Option(
        "--data", metavar="DATA", help="what both models read: a table with image and caption columns, or text",
        show_default=False,
    ),
]  # fmt: skip
Method = Annotated[
    str, typer.Option(metavar="NAMES", help="ridge, procrustes, cca, scale-free, relative; several by commas, or all")
]
SidePool = Annotated[str, typer.Option(metavar="NAME", help="cls, mean or last", show_default="mean; cls for images")]
SidePool2 = Annotated[str, typer.Option(metavar="NAME", help="cls, mean or last", show_default="mean; cls for images")]
MapOut = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="save the best map here")]


@opt.grouped
def match(
    source: Side,
    target: Side2,
    data: PairData = "",
    out_folder: MapOut = None,
    method: Method = "all",
    source_pool: SidePool = "",
    target_pool: SidePool2 = "",
    samples: opt.Samples = None,
    seq_len: opt.ReadLength = 64,
    seed: opt.Seed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Match two models on pairs, in closed form: recall both ways on pairs set aside, method by method."""
    if out_folder is not None:
        inputs.require_place(out_folder, force, source, target, data)
    methods = MAPS if method == "all" else tuple(opt.column_names(method) or ())
    require_maps(methods)
    _require_inputs(source, target, data, opening)

    from slimformer.verbs.solve import match as match_models

    with showing_progress(hidden=shown.hidden) as progress:
        matched = match_models(
            source, target, data or None, out=out_folder, methods=methods, source_pool=source_pool or None,
            target_pool=target_pool or None, samples=samples, seq_len=seq_len, seed=seed, force=force,
            progress=progress, **vars(opening.resolve()),
        )  # fmt: skip
    emit(matched.report, shown, lambda: show_match(matched.report, out_folder, out))


def _require_inputs(source: str, target: str, data: str, opening: opt.OpeningAsked) -> None:
    """Refuse models and data that are not there, and models without data to read."""
    models = [side for side in (source, target) if not is_features(side)]
    if models and not data:
        raise DataNotFound("models are matched on inputs both read; name them with --data, e.g. captions.jsonl")
    for model in models:
        inputs.require_model(model, opening)
    inputs.require_data(data or None)

"""`slimformer sparsify`: zeros in place of weights."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slimformer.cli.inputs import column_names, joined, parts_of, require_data, require_model, require_place
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    DataOption,
    Force,
    Narrowable,
    OnlyData,
    OpeningAsked,
    OutFolder,
    Quiet,
    Samples,
    Seed,
    SeqLen,
    Timing,
    Tokens,
    Verify,
    opens_model,
)
from slimformer.cli.output import saved, show_result
from slimformer.cli.terminal import showing_progress

PatternName = Annotated[
    str, typer.Option("--pattern", metavar="N:M|SHARE", help="2:4: two of four are zero; 0.5: half of all weights")
]
Sparsity = Annotated[
    str, typer.Option("--method", metavar="NAME", help="sparsegpt: the others make up for zeros; magnitude: no data")
]


@opens_model
def sparsify(
    model: Narrowable,
    out_folder: OutFolder,
    pattern: PatternName = "2:4",
    method: Sparsity = "sparsegpt",
    data: DataOption = None,
    only_data: OnlyData = False,
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    opening: OpeningAsked = AS_USUAL,
    timing: Timing = False,
    verify: Verify = True,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Set weights of all blocks to zero, two of four or a share anywhere, and refit the others.

    The zeros are stored as zeros: the folder is no smaller, and opens everywhere.
    """
    name = joined(data)
    require_place(out_folder, force, model, *parts_of(name))
    require_model(model, opening)
    require_data(name)

    from slimformer.compress import sparsify as make_smaller
    from slimformer.models.load import load_model
    from slimformer.steps.sparsify import pattern_of

    pattern_of(pattern)
    asked: dict[str, Any] = {
        "pattern": pattern, "method": method, "only_data": only_data,
        "columns": column_names(columns), "tokens": tokens, "samples": samples, "seq_len": seq_len, "seed": seed,
    }  # fmt: skip
    loaded = load_model(model, opening.resolve())
    with showing_progress(hidden=quiet or as_json) as progress:
        made = make_smaller(loaded, name, timing=timing, progress=progress, **asked)
        result = saved(made, out_folder, force, progress, verify=verify)
    show_result(result.report, out_folder, as_json, quiet)

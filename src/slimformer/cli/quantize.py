"""`slimformer quantize`: the same weights in fewer bits."""

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

Bits = Annotated[int, typer.Option(metavar="N", help="bits of a weight: 8 or 4")]
Group = Annotated[
    int, typer.Option(metavar="N", help="weights of a row that share a step: 32, 64 or 128; 0 for the whole row")
]
Rounding = Annotated[
    str, typer.Option("--method", metavar="NAME", help="gptq: later weights make up for earlier ones; nearest: no data")
]
Symmetric = Annotated[bool, typer.Option(help="steps to both sides of zero, or from the lowest weight to the highest")]


@opens_model
def quantize(
    model: Narrowable,
    out_folder: OutFolder,
    bits: Bits = 4,
    group: Group = 32,
    method: Rounding = "gptq",
    symmetric: Symmetric = True,
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
    """Store the weights of all blocks in 8 or 4 bits, so that plain from_pretrained opens them.

    Embeddings, heads and norms stay. The fit part of --data is rounded on, the report part is measured on. Needs
    the extra `quant`.
    """
    name = joined(data)
    require_place(out_folder, force, model, *parts_of(name))
    require_model(model, opening)
    require_data(name)

    from slimformer.compress import quantize as make_smaller
    from slimformer.models.load import load_model
    from slimformer.steps.quantize import grid_of

    grid_of(bits, group)
    asked: dict[str, Any] = {
        "bits": bits, "group": group, "method": method, "symmetric": symmetric, "only_data": only_data,
        "columns": column_names(columns), "tokens": tokens, "samples": samples, "seq_len": seq_len, "seed": seed,
    }  # fmt: skip
    loaded = load_model(model, opening.resolve())
    with showing_progress(hidden=quiet or as_json) as progress:
        made = make_smaller(loaded, name, timing=timing, progress=progress, **asked)
        result = saved(made, out_folder, force, progress, verify=verify)
    show_result(result.report, out_folder, as_json, quiet)

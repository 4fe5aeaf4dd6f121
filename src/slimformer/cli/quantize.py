"""The commands for fewer bits and for zeros."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from slimformer.cli.compress import require_place, saved, show_result
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    DataOption,
    Force,
    OnlyData,
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
from slimformer.cli.terminal import column_names, joined, progress_bars
from slimformer.models.opening import Opening

err = Console(stderr=True)

Narrowable = Annotated[
    str, typer.Argument(metavar="MODEL", help="a folder (dense or compressed), a hub id, demo:smollm2 or demo:minilm")
]
Bits = Annotated[int, typer.Option(metavar="N", help="bits of a weight: 8 or 4")]
Group = Annotated[
    int, typer.Option(metavar="N", help="weights of a row that share a step: 32, 64 or 128; 0 for the whole row")
]
Rounding = Annotated[
    str, typer.Option("--method", metavar="NAME", help="gptq: later weights make up for earlier ones; nearest: no data")
]
Symmetric = Annotated[bool, typer.Option(help="steps to both sides of zero, or from the lowest weight to the highest")]
PatternName = Annotated[
    str, typer.Option("--pattern", metavar="N:M|SHARE", help="2:4: two of four are zero; 0.5: half of all weights")
]
Sparsity = Annotated[
    str, typer.Option("--method", metavar="NAME", help="sparsegpt: the others make up for zeros; magnitude: no data")
]


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
    opening: Opening = AS_USUAL,
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
    from slimformer.compress import quantize as make_smaller
    from slimformer.steps.quantize import grid_of

    grid_of(bits, group)
    reading = {"columns": column_names(columns), "tokens": tokens, "samples": samples, "seq_len": seq_len, "seed": seed}
    reading["only_data"] = only_data
    asked = {"bits": bits, "group": group, "method": method, "symmetric": symmetric, **reading}
    _run(make_smaller, model, data, out_folder, asked, opening, timing, verify, force, as_json, quiet)


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
    opening: Opening = AS_USUAL,
    timing: Timing = False,
    verify: Verify = True,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Set weights of all blocks to zero, two of four or a share anywhere, and refit the others.

    The zeros are stored as zeros: the folder is no smaller, and opens everywhere.
    """
    from slimformer.compress import sparsify as make_sparse
    from slimformer.steps.sparsify import pattern_of

    pattern_of(pattern)
    reading = {"columns": column_names(columns), "tokens": tokens, "samples": samples, "seq_len": seq_len, "seed": seed}
    reading["only_data"] = only_data
    asked = {"pattern": pattern, "method": method, **reading}
    _run(make_sparse, model, data, out_folder, asked, opening, timing, verify, force, as_json, quiet)


def _run(
    make: Callable[..., Any], model: str, data: list[str] | None, folder: Path, asked: dict[str, Any], opening: Opening,
    timing: bool, verify: bool, force: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    from slimformer.models.load import load_model

    name = joined(data)
    require_place(folder, force, model, name, *name.split(","))
    loaded = load_model(model, opening)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        made = make(loaded, name, timing=timing, progress=progress, **asked)
        result = saved(made, folder, force, progress, verify=verify)
    show_result(result.report, folder, as_json, quiet)


QUANTIZE: dict[Callable[..., None], str] = {
    quantize: "slimformer quantize demo:smollm2 --bits 4 --group 32 --out smaller",
    sparsify: "slimformer sparsify demo:smollm2 --pattern 2:4 --out sparse",
}

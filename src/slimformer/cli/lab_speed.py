"""`slimformer lab speed`: what a Linformer layer costs on this machine, beside exact attention."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from slimformer.cli import options as opt
from slimformer.cli.output import emit, out
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError


@opt.grouped
def lab_speed(
    lengths: Annotated[
        str, typer.Option(metavar="NUMBERS", help="tokens of an input, e.g. 512,4096")
    ] = "512,1024,2048",
    k: Annotated[str, typer.Option(metavar="NUMBERS", help="rows that keys and values are projected to")] = "128,256",
    heads: Annotated[int, typer.Option(min=1, metavar="N", help="of the layer")] = 2,
    width: Annotated[int, typer.Option(min=1, metavar="N", help="of the layer")] = 128,
    training: Annotated[bool, typer.Option("--training", help="time forward and backward, not forward alone")] = False,
    room: Annotated[
        int,
        typer.Option(min=0, metavar="MB", help="for the largest batch whose training step adds no more; 0: none"),
    ] = 128,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="threads of one operation")] = 1,
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Time, memory and largest batch of a Linformer layer: how long must a text be before fewer keys pay here?

    `exact` is a fused kernel, which is what anyone would use; `written out` is what the paper compared with; `svd` is
    the best rank k of each attention matrix (its eq. 6), which costs more than it saves; `k 128` has 128 trained rows.
    """
    sizes, rows = numbers(lengths, "--lengths"), numbers(k, "--k")
    if width % heads:
        raise SlimformerError(f"--width {width} has no {heads} equal heads; give a multiple")

    import torch

    from slimformer.lab.speed import can_tell_memory, table

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with showing_progress(hidden=shown.hidden) as progress:
            mode: Any = "training" if training else "forward"
            rows_of_table = table(sizes, rows, (heads, width), mode, room * 2**20, progress)
    finally:
        torch.set_num_threads(before)

    def tables() -> None:
        out.print(shown_table(rows_of_table))
        if any("largest" in row for row in rows_of_table):
            out.print(f"batch: the largest seen to train in {room} MB beyond weights and inputs")
        if not can_tell_memory():
            out.print("memory is not told: this system has no high-water mark that can be reset")

    facts = {"heads": heads, "width": width, "mode": mode, "room_mb": room, "threads": threads}
    emit({**facts, "rows": rows_of_table}, shown, tables)


def numbers(text: str, flag: str) -> list[int]:
    """The numbers in `512,1024`, in their order, each once."""
    try:
        given = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        given = []
    if not given or given[0] < 1:
        raise SlimformerError(f"{flag} {text!r} is not a list of whole numbers from 1; give e.g. 128,256")
    return given


def shown_table(rows: list[dict[str, Any]]) -> Table:
    """A line for each layer, a rule between lengths."""
    batch = ["batch"] if any("largest" in row for row in rows) else []
    titled = Table("tokens", "layer", "ms", "× faster", "peak MB", "× less", *batch)
    for i, row in enumerate(rows):
        if i and rows[i - 1]["n"] != row["n"]:
            titled.add_section()
        peak, ratio = row["peak_bytes"], row["memory_ratio"]
        memory = ("–", "–") if peak is None else (f"{peak / 2**20:.1f}", f"{ratio:.2f}")
        last = [str(row["largest"]["batch"])] if batch else []
        titled.add_row(
            str(row["n"]), row["layer"], f"{1e3 * row['seconds']:.1f}", f"{row['speedup']:.2f}", *memory, *last
        )
    return titled

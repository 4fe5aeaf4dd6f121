"""`slimformer bench`: a smaller model against the dense one, as they would serve."""

from __future__ import annotations

from typing import Annotated

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out, record_in, recorded_report
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError
from slimformer.export.asked import RUNTIMES
from slimformer.report.track import tracker


@opt.grouped
def bench(
    folder: opt.Small,
    against: opt.Against,
    batch_sizes: Annotated[
        str, typer.Option("--batch-sizes", metavar="NUMBERS", help="sequences at once, e.g. 1,4,16")
    ] = "1,4",
    seq_len: opt.SeqLen = None,
    new_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="tokens decoded after each prompt")] = 16,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="interleaved rounds")] = 10,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="threads of one operation", show_default="as torch has it")
    ] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", metavar="NAME", help="torch, onnxruntime or openvino, the last two on the CPU")
    ] = "torch",
    seed: opt.Seed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    track: opt.Track = None,
    record: opt.Record = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Time a smaller model against the dense one: prefill, decode, throughput over batch sizes, peak memory, cache."""
    sizes, recorded = _batch_sizes(batch_sizes), tracker(track)
    if runtime not in RUNTIMES:
        raise SlimformerError(f"--runtime {runtime!r} is not known; choose from {', '.join(RUNTIMES)}")
    inputs.require_models(folder, against, opening)

    from slimformer.report.tasks import bench_table
    from slimformer.verbs.compare import bench as measure

    if record:
        recorded_report(folder)
    with showing_progress(hidden=shown.hidden) as progress:
        figures = measure(
            folder, against, batch_sizes=sizes, seq_len=seq_len, new_tokens=new_tokens, repeats=repeats,
            threads=threads, runtime=runtime, seed=seed, progress=progress, **vars(opening.resolve()),
        ).to_dict()  # fmt: skip
    if record:
        record_in(folder, lambda report: {**report, "bench": figures})
    recorded("bench", figures)
    emit(figures, shown, lambda: out.print(bench_table(figures)))


def _batch_sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise SlimformerError(f"--batch-sizes {text!r} is not a list of whole numbers from 1; give e.g. 1,4,16")
    return sizes

"""The commands that measure: a smaller model beside the dense one on data or on a task, and as it would serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from slimformer.cli.frontier import emit, read_data, require_readable_as_recorded
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    EvalData,
    EvalTokens,
    Quiet,
    Samples,
    Seed,
    SeqLen,
    Timing,
    Track,
    opens_model,
)
from slimformer.cli.terminal import column_names, joined, progress_bars
from slimformer.errors import ReportNotFound, SlimformerError
from slimformer.models.opening import Opening

err = Console(stderr=True)
out = Console()

Small = Annotated[str, typer.Argument(metavar="DIR", help="the smaller model")]
Against = Annotated[str, typer.Option(metavar="MODEL", help="the dense model it came from")]
EvaluatedData = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="as for compress; with --task a file or folder of it",
        show_default="what was held out of the data it was calibrated on",
    ),
]
Record = Annotated[bool, typer.Option("--record", help="also write the result into DIR/report.json")]


@opens_model
def eval_(
    folder: Small,
    against: Against,
    data: EvaluatedData = None,
    eval_data: EvalData = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sst2, mnli, qqp, qnli, stsb, mrpc, squad, squad_v2, wikitext2, ptb, c4, ptb-new or c4-new, scored as "
            "in the papers; from --data, else from the hub",
        ),
    ] = None,
    columns: Columns = "",
    tokens: EvalTokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    stride: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="squad: tokens that parts of a context share", show_default="128"),
    ] = None,
    longest: Annotated[int, typer.Option(min=1, metavar="N", help="squad: tokens of the longest answer")] = 30,
    n_best: Annotated[int, typer.Option(min=1, metavar="N", help="squad: starts and ends that are combined")] = 20,
    threshold: Annotated[float, typer.Option(metavar="X", help="squad_v2: null score above which to be silent")] = 0.0,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="rows read at once, with --task")] = 16,
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    timing: Timing = True,
    track: Track = None,
    record: Record = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare a smaller model with the dense one on --data, or on a --task of the papers.

    Of data it was calibrated on, only what was held out is read, and that is what is read without --data; a task is
    read whole.
    """
    if task is None:
        if record:
            raise SlimformerError("--record is for the scores of a --task; give one")
        how = {"columns": columns, "tokens": tokens, "samples": samples, "seq_len": seq_len, "seed": seed}
        if not data:
            require_readable_as_recorded(columns=columns, samples=samples)
        sources = (joined(data) if data else None, *(eval_data or ()))
        return _on_data(folder, against, sources, how, opening, timing, track, as_json, quiet)
    from slimformer.evaluate.task import Options

    _require_task_options(several=bool(eval_data) or len(data or ()) > 1, limited=tokens is not None or not timing)
    names = tuple(column_names(columns) or ())
    asked = Options(
        joined(data) if data else None, names or None, seq_len, samples, batch_size, threshold, stride, longest, n_best,
        seed=seed,
    )  # fmt: skip
    _on_task(folder, against, task, asked, opening, track, record, as_json, quiet)


def _require_task_options(*, several: bool, limited: bool) -> None:
    """Refuse options that a task would leave unread."""
    if several:
        raise SlimformerError("a --task is read from one --data, without --eval-data; leave out the others")
    if limited:
        raise SlimformerError(
            "--tokens and --no-timing say how --data are compared; a --task is read whole and never timed: leave them "
            "out (--samples takes less of it, bench times)"
        )


def _on_data(
    folder: str, against: str, sources: tuple[str | None, ...], how: dict[str, Any], opening: Opening, timing: bool,
    track: str | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    from slimformer.evaluate import assessment as assess
    from slimformer.models.load import load_model
    from slimformer.report.console import show
    from slimformer.report.track import tracker

    recorded, small = tracker(track), load_model(folder, _of_small(opening))
    loaded = load_model(against, opening)
    first, *others = sources
    if first is None:
        batches = assess.data_of(small, loaded, seq_len=how["seq_len"], tokens=how["tokens"])
    else:
        batches = read_data(loaded, first, purpose="evaluation", **how)
    beside = [read_data(loaded, str(name), purpose="evaluation", **how) for name in others]
    with progress_bars(err, hidden=quiet or as_json) as progress:
        report = assess.evaluate_pair(loaded, small, batches, beside, timing=timing, progress=progress)
    recorded("eval", report.to_dict())
    emit(report.to_dict(), as_json, quiet, lambda: show(report, out))


def _on_task(
    folder: str, against: str, task: str, how: Any, opening: Opening, track: str | None, record: bool, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    from slimformer.evaluate import assessment as assess
    from slimformer.evaluate.report import strict
    from slimformer.evaluate.task import evaluate_task, require_task
    from slimformer.report.tasks import task_table
    from slimformer.report.track import tracker

    require_task(task)
    recorded = tracker(track)
    if record:
        _recorded(folder)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        progress("load", 0, 1)
        loaded, small = _pair(folder, against, opening)
        progress("load", 1, 1)
        progress(task, 0, 1)
        report = evaluate_task(task, loaded, small, how)
        progress(task, 1, 1)
    found = strict(replace(report, notes=[*report.notes, *assess.calibrated_on(small, report.files)]).to_dict())
    if record:
        _record(folder, lambda kept: {**kept, "tasks": {**(kept.get("tasks") or {}), task: found}})
    recorded("eval", found)
    emit(found, as_json, quiet, lambda: out.print(task_table(found)))


@opens_model
def bench(
    folder: Small,
    against: Against,
    batch_sizes: Annotated[
        str, typer.Option("--batch-sizes", metavar="NUMBERS", help="sequences at once, e.g. 1,4,16")
    ] = "1,4",
    seq_len: SeqLen = None,
    new_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="tokens decoded after each prompt")] = 16,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="interleaved rounds")] = 10,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="threads of one operation", show_default="as torch has it")
    ] = None,
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    track: Track = None,
    record: Record = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Time a smaller model beside the dense one: prefill, decode, throughput over batch sizes, peak memory, cache."""
    import torch

    from slimformer.evaluate.bench import bench as measure
    from slimformer.report.tasks import bench_table
    from slimformer.report.track import tracker

    sizes, recorded = _batch_sizes(batch_sizes), tracker(track)
    if record:
        _recorded(folder)
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with progress_bars(err, hidden=quiet or as_json) as progress:
            loaded, small = _pair(folder, against, opening)
            found = measure(
                loaded.model, small.model, names=(loaded.name, small.name), batch_sizes=sizes, seq_len=seq_len,
                new_tokens=new_tokens, repeats=repeats, seed=seed, progress=progress,
            ).to_dict()  # fmt: skip
    finally:
        torch.set_num_threads(before)
    if record:
        _record(folder, lambda kept: {**kept, "bench": found})
    recorded("bench", found)
    emit(found, as_json, quiet, lambda: out.print(bench_table(found)))


def _pair(folder: str, against: str, opening: Opening) -> tuple[Any, Any]:
    """Both models on one device, the one made from the other as far as can be told."""
    from slimformer.evaluate.assessment import require_relatives
    from slimformer.models.load import load_model

    small, loaded = load_model(folder, _of_small(opening)), load_model(against, opening)
    require_relatives(loaded, small)
    return loaded, small


def _of_small(opening: Opening) -> Opening:
    """The smaller model is opened as what it was made from is, but for what is said of a model on the hub."""
    return replace(opening, revision=None, trust_remote_code=False)


def _batch_sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise SlimformerError(f"--batch-sizes {text!r} is not a list of whole numbers from 1; give e.g. 1,4,16")
    return sizes


def _recorded(folder: str) -> dict[str, Any]:
    """The report of a folder; without one there is nothing to write into."""
    from slimformer.evaluate.report_file import read_report

    file = Path(folder) / "report.json"
    try:
        return read_report(file)
    except ReportNotFound as error:
        raise SlimformerError(f"there is no report to record in: {error}, or leave out --record") from None


def _record(folder: str, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write the report anew, and its page if there is one that nobody has changed."""
    from slimformer.checkpoint.atomic import revising
    from slimformer.checkpoint.lines import json_text
    from slimformer.evaluate.report import strict
    from slimformer.files.manifest import changed as changed_files
    from slimformer.report.page import html_page, is_page

    place, found = Path(folder), strict(changed(_recorded(folder)))
    with revising(place, "report.json") as file:
        file.write_text(json_text(found), encoding="utf-8")
    if is_page(place / "report.html") and not any(changed_files(place, "report.html")):
        with revising(place, "report.html") as file:
            file.write_text(html_page(found, folder=place.resolve().name), encoding="utf-8")


MEASURE: dict[Callable[..., None], str] = {
    eval_: "slimformer eval smaller --against demo:smollm2 --data other-text.txt\n\n"
    "As in the papers: slimformer eval smaller --against ./bert --task sst2 --data glue/SST-2",
    bench: "slimformer bench smaller --against demo:smollm2 --batch-sizes 1,8",
}

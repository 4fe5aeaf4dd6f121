"""`slimformer eval`: a smaller model against the dense one, on data or on a task of the papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out, record_in, recorded_report
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError
from slimformer.report.track import Record as Recorder
from slimformer.report.track import tracker


@opt.grouped
def eval_(
    folder: opt.Small,
    against: opt.Against,
    data: opt.MeasuredData = None,
    eval_data: opt.EvalData = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sst2, mnli, qqp, qnli, sts (or stsb), mrpc, retrieval, squad, squad_v2, wikitext2, ptb, c4, ptb-new "
            "or c4-new, scored as in the papers; from --data, else from the hub",
        ),
    ] = None,
    columns: opt.Columns = "",
    tokens: opt.EvalTokens = None,
    samples: opt.Samples = None,
    seq_len: opt.SeqLen = None,
    stride: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="squad: tokens that parts of a context share", show_default="128"),
    ] = None,
    longest: Annotated[int, typer.Option(min=1, metavar="N", help="squad: tokens of the longest answer")] = 30,
    n_best: Annotated[int, typer.Option(min=1, metavar="N", help="squad: starts and ends that are combined")] = 20,
    threshold: Annotated[float, typer.Option(metavar="X", help="squad_v2: null score above which to be silent")] = 0.0,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="rows read at once, with --task")] = 16,
    seed: opt.Seed = 0,
    opening: opt.OpeningAsked = opt.AS_USUAL,
    timing: opt.Timing = True,
    track: opt.Track = None,
    record: opt.Record = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Compare a smaller model with the dense one on --data, or on a --task of the papers.

    Of data it was calibrated on, only what was held out is read, and that is what is read without --data; a task is
    read whole.
    """
    recorded, sources = tracker(track), (inputs.joined(data) if data else None, *(eval_data or ()))
    if task is None:
        _require_data_options(sources, columns, samples, record)
        inputs.require_models(folder, against, opening)
        reading = opt.Reading(columns, tokens, samples, seq_len, seed)
        return _on_data((folder, against, opening), sources, reading, timing, recorded, shown)
    several, limited = bool(eval_data) or len(data or ()) > 1, tokens is not None or not timing
    _require_task_options(task, several=several, limited=limited)
    inputs.require_models(folder, against, opening)
    how: dict[str, Any] = {
        "data": sources[0], "columns": tuple(opt.column_names(columns) or ()) or None, "seq_len": seq_len, "seed": seed,
        "limit": samples, "batch_size": batch_size, "threshold": threshold, "stride": stride, "longest": longest,
        "n_best": n_best,
    }  # fmt: skip
    _on_task((folder, against, opening), task, how, recorded, record, shown)


def _require_data_options(sources: tuple[str | None, ...], columns: str, samples: int | None, record: bool) -> None:
    """Refuse data that are not there, and options that are for a task."""
    if record:
        raise SlimformerError("--record is for the scores of a --task; give one")
    if sources[0] is None:
        inputs.require_readable_as_recorded(columns=columns, samples=samples)
    inputs.require_data(*sources)


def _require_task_options(task: str, *, several: bool, limited: bool) -> None:
    """Refuse what is no task, and options that a task would leave unread."""
    from slimformer.evaluate.examples import require_task

    require_task(task)
    if several:
        raise SlimformerError("a --task is read from one --data, without --eval-data; leave out the others")
    if limited:
        raise SlimformerError(
            "--tokens and --no-timing say how --data are compared; a --task is read whole and never timed: leave them "
            "out (--samples takes less of it, bench times)"
        )


def _on_data(
    pair: tuple[str, str, opt.OpeningAsked], sources: tuple[str | None, ...], reading: opt.Reading, timing: bool,
    recorded: Recorder, shown: opt.Shown,
) -> None:  # fmt: skip
    from slimformer.evaluate import assessment as assess
    from slimformer.report.console import show

    loaded, small = inputs.load_pair(*pair)
    first, *others = sources
    if first is None:
        batches = assess.data_of(small, loaded, seq_len=reading.seq_len, tokens=reading.tokens)
    else:
        batches = inputs.read_data(loaded, first, reading, purpose="evaluation")
    others_read = [inputs.read_data(loaded, str(name), reading, purpose="evaluation") for name in others]
    with showing_progress(hidden=shown.hidden) as progress:
        report = assess.evaluate_pair(loaded, small, batches, others_read, timing=timing, progress=progress)
    recorded("eval", report.to_dict())
    emit(report.to_dict(), shown, lambda: show(report, out))


def _on_task(
    pair: tuple[str, str, opt.OpeningAsked], task: str, how: dict[str, Any], recorded: Recorder, record: bool,
    shown: opt.Shown,
) -> None:  # fmt: skip
    from slimformer.evaluate import assessment as assess
    from slimformer.evaluate.report import strict
    from slimformer.evaluate.task import Options, evaluate_task
    from slimformer.report.tasks import task_table

    if record:
        recorded_report(pair[0])
    with showing_progress(hidden=shown.hidden) as progress:
        progress("load", 0, 1)
        loaded, small = inputs.load_relatives(*pair)
        progress("load", 1, 1)
        progress(task, 0, 1)
        report = evaluate_task(task, loaded, small, Options(**how))
        progress(task, 1, 1)
    scores = strict(replace(report, notes=[*report.notes, *assess.calibrated_on(small, report.files)]).to_dict())
    if record:
        record_in(pair[0], lambda report: {**report, "tasks": {**(report.get("tasks") or {}), task: scores}})
    recorded("eval", scores)
    emit(scores, shown, lambda: out.print(task_table(scores)))

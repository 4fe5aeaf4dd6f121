"""`slimformer eval`: a smaller model against the dense one, on data or on a task of the papers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, out, record_in, recorded_report
from slimformer.cli.terminal import showing_progress
from slimformer.errors import SlimformerError
from slimformer.report.track import Record as Recorder
from slimformer.report.track import tracker

MEASURED = ("metrics", "other_data", "elsewhere", "latency", "samples", "neighbours")  # fields of a report


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
        return _on_data((folder, against, opening), sources, reading, timing, (recorded, record), shown)
    several, limited = bool(eval_data) or len(data or ()) > 1, tokens is not None or not timing
    _require_task_options(task, several=several, limited=limited)
    inputs.require_models(folder, against, opening)
    how: dict[str, Any] = {
        "data": sources[0], "columns": opt.column_names(columns), "seq_len": seq_len, "seed": seed,
        "samples": samples, "batch_size": batch_size, "threshold": threshold, "stride": stride, "longest": longest,
        "n_best": n_best,
    }  # fmt: skip
    _on_task((folder, against, opening), task, how, recorded, record, shown)


def _require_data_options(sources: tuple[str | None, ...], columns: str, samples: int | None, record: bool) -> None:
    """Refuse data that are not there, and options that are for a task."""
    if record and any(sources):
        raise SlimformerError(
            "--record keeps what is measured on the text that calibration held out, or the scores of a --task; leave "
            "--data and --eval-data out, or give a --task"
        )
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
    recording: tuple[Recorder, bool], shown: opt.Shown,
) -> None:  # fmt: skip
    from slimformer.report.console import show
    from slimformer.verbs.compare import evaluate

    (folder, against, opening), (first, *others), (recorded, record) = pair, sources, recording
    if record:
        recorded_report(folder)
    with showing_progress(hidden=shown.hidden) as progress:
        report = evaluate(
            folder, against, first, eval_data=[str(name) for name in others], timing=timing, progress=progress,
            **reading.arguments(), **vars(opening.resolve()),
        )  # fmt: skip
    fields = report.to_dict()
    if record:
        record_in(folder, lambda known: _measured(known, fields))
    recorded("eval", fields)
    emit(fields, shown, lambda: show(report, out))


def _measured(known: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The report of a folder with what was measured now, as if it had been measured when the model was made."""
    notes = [note for note in fields["warnings"] if note not in known["warnings"]]
    return {**known, **{name: fields[name] for name in MEASURED}, "warnings": [*known["warnings"], *notes]}


def _on_task(
    pair: tuple[str, str, opt.OpeningAsked], task: str, how: dict[str, Any], recorded: Recorder, record: bool,
    shown: opt.Shown,
) -> None:  # fmt: skip
    from slimformer.evaluate.report import strict
    from slimformer.report.tasks import task_table
    from slimformer.verbs.compare import evaluate_task

    folder, against, opening = pair
    if record:
        recorded_report(folder)
    with showing_progress(hidden=shown.hidden) as progress:
        report = evaluate_task(task, folder, against, progress=progress, **how, **vars(opening.resolve()))
    scores = strict(report.to_dict())
    if record:
        record_in(folder, lambda report: {**report, "tasks": {**(report.get("tasks") or {}), task: scores}})
    recorded("eval", scores)
    emit(scores, shown, lambda: out.print(task_table(scores)))

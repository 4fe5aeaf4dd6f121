"""A smaller model against the dense one: on data, on a task of the papers, and by the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from slimformer.calibrate.documents import Source
from slimformer.evaluate import assessment
from slimformer.evaluate import task as tasks
from slimformer.evaluate.bench import ROUNDS, Bench, Workload
from slimformer.evaluate.bench import bench as measure
from slimformer.evaluate.report import Report
from slimformer.export.runtimes import bench_in, require_runtime
from slimformer.messages.arguments import NUMBER, TEXT, Kind, check_arguments, whole
from slimformer.messages.progress import Progress, silent
from slimformer.models.load import Loaded
from slimformer.models.opening import Opening, OpeningOptions, opening_in
from slimformer.verbs.asked import MODEL_OR_LOADED, Model, ReadingOptions, open_pair, read_for

SIZES = Kind(
    "a list of whole numbers from 1",
    lambda x: isinstance(x, list | tuple) and bool(x) and all(whole(1).accepts(each) for each in x),
)


class EvaluationOptions(ReadingOptions, total=False):
    """`eval_data` to measure on as well, `timing` for latency; the others say how data are read and models opened."""

    eval_data: Sequence[Source] | None
    timing: bool


class TaskOptions(OpeningOptions, total=False):
    """How a task is read: `data` (a file or folder; none for the hub), `columns`, `seq_len`, at most `samples`
    examples, `batch_size`, and of question answering `threshold`, `stride`, `longest` and `n_best`; a `seed` for
    intervals."""

    data: str | None
    columns: Sequence[str] | None
    seq_len: int | None
    samples: int | None
    batch_size: int
    threshold: float
    stride: int | None
    longest: int
    n_best: int
    seed: int


class BenchOptions(OpeningOptions, total=False):
    """Prompts of `seq_len` tokens, `new_tokens` decoded after each, `repeats` interleaved rounds whose order `seed`
    draws, `threads` of one operation; the `runtime` (torch, onnxruntime or openvino; the last two time passes over
    whole inputs, without a cache)."""

    seq_len: int | None
    new_tokens: int
    repeats: int
    threads: int | None
    seed: int
    runtime: str


@check_arguments(model=MODEL_OR_LOADED, against=MODEL_OR_LOADED)
@torch.inference_mode(False)
def evaluate(
    model: Model, against: Model, data: Source | Tensor | None = None, *, progress: Progress = silent,
    **how: Unpack[EvaluationOptions],
) -> Report:  # fmt: skip
    """Compare a smaller model with the dense one it came from, with 95 % intervals over documents.

    Of data it was calibrated on, only what was held out is read, and that is what is read without `data`. For language
    models mean KL divergence Σ p log(p/q) and perplexity, for encoders cosines and neighbours, for classifiers how
    often they agree. Cost: a forward pass of each.

    >>> report = slimformer.evaluate("smaller", "llama", "text.txt", timing=False)
    >>> [metric["name"] for metric in report.metrics][:2]
    ['perplexity', 'nats per token']
    """
    given: dict[str, Any] = dict(how)
    loaded, small = open_pair(model, against, opening_in(given), given.pop("processor", None))
    others, timing = given.pop("eval_data", None) or (), given.pop("timing", True)
    if data is None:
        read = assessment.data_of(small, loaded, seq_len=given.get("seq_len"), tokens=given.get("tokens"))
    else:
        read = read_for(loaded, data, given, purpose="evaluation")
    others_read = [read_for(loaded, each, given, purpose="evaluation") for each in others]
    return assessment.evaluate_pair(loaded, small, read, others_read, timing=timing, progress=progress)


@check_arguments(
    task=TEXT, model=MODEL_OR_LOADED, against=MODEL_OR_LOADED, batch_size=whole(1), threshold=NUMBER,
    stride=whole(0, optional=True), longest=whole(1), n_best=whole(1),
)  # fmt: skip
def evaluate_task(
    task: str, model: Model, against: Model, *, progress: Progress = silent, **how: Unpack[TaskOptions]
) -> tasks.TaskReport:
    """Score both models on a task as the papers do (sst2, mnli, squad, wikitext2, …), with paired intervals.

    Cost: a forward pass of each over the task.

    >>> report = slimformer.evaluate_task("wikitext2", "smaller", "llama", data="text.txt", seq_len=32)
    >>> [metric["name"] for metric in report.metrics]
    ['perplexity']
    """
    given: dict[str, Any] = dict(how)
    tasks.require_task(task)
    opening = opening_in(given)
    columns = given.pop("columns", None)
    known = {field.name for field in fields(tasks.Options)}
    options = tasks.Options(
        limit=given.pop("samples", None), columns=tuple(columns) if columns else None,
        **{name: value for name, value in given.items() if name in known},
    )  # fmt: skip
    progress("load", 0, 1)
    loaded, small = open_relatives(model, against, opening)
    progress("load", 1, 1)
    progress(task, 0, 1)
    report = tasks.evaluate_task(task, loaded, small, options)
    progress(task, 1, 1)
    return replace(report, notes=[*report.notes, *assessment.calibrated_on(small, report.files)])


@check_arguments(
    model=MODEL_OR_LOADED, against=MODEL_OR_LOADED, batch_sizes=SIZES, new_tokens=whole(1), repeats=whole(1),
    threads=whole(1, optional=True),
)  # fmt: skip
def bench(
    model: Model, against: Model, *, batch_sizes: Sequence[int] = (1, 4), progress: Progress = silent,
    **how: Unpack[BenchOptions],
) -> Bench:  # fmt: skip
    """Time a smaller model against the dense one as they would serve: prefill, decode, throughput, memory, cache.

    Both take turns in an order drawn anew for each round; times are medians with quartiles. Cost: repeats + 2 passes of
    each, at every batch size.

    >>> found = slimformer.bench("smaller", "llama", batch_sizes=[1], repeats=2, new_tokens=2, seq_len=8)
    >>> sorted({each.phase for each in found.measurements})
    ['decode', 'prefill']
    """
    given: dict[str, Any] = dict(how)
    runtime = given.pop("runtime", "torch")
    require_runtime(runtime)
    loaded, small = open_relatives(model, against, opening_in(given))
    work = Workload(list(batch_sizes), given.pop("seq_len", None), given.pop("new_tokens", 16))
    threads = given.pop("threads", None)
    if runtime != "torch":
        pair, rounds = {"dense": loaded, "small": small}, replace(ROUNDS, **given)
        return bench_in(runtime, pair, work, rounds, threads=threads, progress=progress)
    with _threads(threads):
        return measure(
            loaded.model, small.model, work, replace(ROUNDS, **given), names=(loaded.name, small.name),
            progress=progress,
        )  # fmt: skip


def open_relatives(model: Model, against: Model, opening: Opening) -> tuple[Loaded, Loaded]:
    """The dense model and the smaller one, the one made from the other as far as can be told."""
    loaded, small = open_pair(model, against, opening)
    assessment.require_relatives(loaded, small)
    return loaded, small


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)

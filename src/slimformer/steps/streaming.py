"""Compress a model that does not fit into memory: the story of `pipeline`, walked block by block, twice.

    first walk      moments and error curves of every block                              → plan
    second walk     dense block and cut copy side by side: cut, correct, write a shard   → checkpoint

Between blocks only states are kept, in mapped files (`models.state_store`). Both walks go on at the last finished block
when they were killed. What needs the whole model at once is done without: errors are counted in squares and weighed by
the energy of the stream they are added to, in place of the Fisher metric and of probes; linear paths are not offered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.collect import collect
from slimformer.calibrate.documents import UNNAMED, Source
from slimformer.calibrate.gather import Data, gather, sequence_length
from slimformer.calibrate.store import Statistics, begin, moments_file, open_statistics, write_block, write_weights
from slimformer.checkpoint.atomic import one_clear_line, require_apart, require_free, writing
from slimformer.checkpoint.lines import json_text
from slimformer.checkpoint.load import load
from slimformer.checkpoint.save import write_belongings
from slimformer.checkpoint.shards import assemble, outside_tensors, write_tensors
from slimformer.checkpoint.verify import verify as verify_reload
from slimformer.decompose import Curve
from slimformer.errors import CannotWrite, PlanDoesNotFit, WorkTorn
from slimformer.evaluate.assessment import data_provenance, describe_result
from slimformer.evaluate.compare import compare
from slimformer.evaluate.data_notes import thin_data, unnamed_data
from slimformer.evaluate.perplexity import pieces
from slimformer.evaluate.report import Report
from slimformer.files.disk import flush
from slimformer.files.reading import read_bytes
from slimformer.files.versions import versions
from slimformer.messages.progress import Progress, silent
from slimformer.messages.short import Short
from slimformer.models.architecture import Architecture
from slimformer.models.opening import Opening, OpeningOptions
from slimformer.models.ranks import rank_sites
from slimformer.models.stream import Skeleton, sketch
from slimformer.models.walk import ending_in
from slimformer.nn.long_context import require_every_key
from slimformer.plan import Budget, Plan, allocate, check_budget
from slimformer.plan.budget import budget_of
from slimformer.plan.curve_file import read_curves
from slimformer.plan.memory import Estimate, in_words
from slimformer.plan.settings import CutSettings
from slimformer.report.card import model_card
from slimformer.report.page import html_page
from slimformer.rewrite.sizes import state_sizes
from slimformer.run import Run, timed
from slimformer.steps.alternatives import alternatives
from slimformer.steps.calibration import block_curves, keep_curves, provenance_of
from slimformer.steps.make import even_plan
from slimformer.steps.memory import (
    Promise,
    anonymous_memory,
    disk_needed,
    give_back,
    past_frozen,
    require_disk,
)
from slimformer.steps.on_disk import OnDisk
from slimformer.steps.second_walk import Walked, second_walk
from slimformer.steps.streaming_job import Job, asked_before, job_for, require_whole, work_folder
from slimformer.steps.streaming_limits import on_the_cpu, streamable

NOTE = (
    "the model was read block by block, so errors were counted in squares and weighed by the energy of the stream "
    "(no Fisher metric, no probes), and no linear paths were offered"
)


@dataclass(frozen=True, repr=False)
class Streamed(Short):
    """A checkpoint that was written block by block: what was decided, what it did, and the memory it was promised."""

    folder: Path
    plan: Plan
    report: Report
    estimate: Estimate

    def facts(self) -> dict[str, str]:
        """What its report says, and where it is."""
        return {**self.report.facts(), "folder": str(self.folder)}


@dataclass(frozen=True)
class _Task:
    """All that is asked for, ready to be worked on."""

    skeleton: Skeleton
    data: Data
    budget: Budget
    settings: CutSettings
    format: str
    refined: bool
    estimate: Estimate
    progress: Progress
    seconds: dict[str, float]


def stream(
    model: str | Path,
    folder: str | Path,
    data: Source | torch.Tensor = UNNAMED,
    *,
    memory: int,
    macs: float | None = None,
    params: float | None = None,
    settings: CutSettings,
    format: str = "ragged",
    seq_len: int | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    columns: Sequence[str] | None = None,
    only_data: bool = False,
    seed: int = 0,
    refine: bool = True,
    force: bool = False,
    verify: bool = True,
    progress: Progress = silent,
    say: Any = lambda _line: None,
    **opening: Unpack[OpeningOptions],
) -> Streamed:
    """Shrink a checkpoint to a fraction of its block MACs or parameters within `memory` bytes and write it to `folder`.

    Memory is a promise about anonymous memory (`plan.memory`): kept, or refused before the work. The work is kept
    beside `folder` until it is finished; the same call goes on with it. `opening` is as for `compress`, but for the
    device, which is the CPU. Cost: that of `pipeline.compress`, and reading the weights three times.
    """
    folder, seconds = Path(folder), dict[str, float]()
    budget = budget_of(macs=macs, params=params)
    chosen = streamable(settings)
    require_apart(folder, model if isinstance(model, Path) or Path(model).exists() else None)
    require_free(folder, force)
    how = on_the_cpu(Opening(**opening))
    with timed(seconds, "load"):
        skeleton = sketch(model, how)
    require_every_key(skeleton.loaded.model)
    length = sequence_length(skeleton.loaded.model, skeleton.architecture, seq_len)
    check_budget(skeleton.architecture, budget, seq_len=length, settings=chosen, format=format)
    promise = Promise(skeleton, length, memory, refine)
    rows = promise.before_opening(data, asked_before(folder).get("batch_size")).batch_size
    with timed(seconds, "load"):
        skeleton.read_outside()
    with timed(seconds, "data"):
        batches = gather(
            data, skeleton.loaded.model, skeleton.loaded.processor, skeleton.architecture, seq_len=seq_len,
            tokens=tokens, samples=samples, columns=columns, seed=seed, batch_size=rows, broad=not only_data,
        )  # fmt: skip
    estimate = promise.before_work(batches, rows)
    say(f"memory: {estimate}; allowed {in_words(memory)}")
    require_disk(disk_needed(skeleton, batches.tokens, budget.fraction, refined=refine), work_folder(folder))
    task = _Task(skeleton, batches, budget, chosen, format, refine, estimate, progress, seconds)
    with timed(seconds, "read"):
        mark = _fingerprint(skeleton, progress)
    with job_for(folder, _asked(task, mark)) as job:
        say(f"{'going on with' if job.resumed else 'working in'} {work_folder(folder)}; if it is stopped, the same "
            "command goes on from there")  # fmt: skip
        return _carry_on(task, job, mark, folder, say, force=force, whole=verify, memory=memory)


@dataclass(frozen=True)
class Foreseen:
    """What would be kept if every block lost the same share, and the memory it would take to make it."""

    architecture: Architecture
    plan: Plan
    estimate: Estimate


def foresee(
    model: str | Path, data: Source | torch.Tensor = UNNAMED, *, memory: int, macs: float | None = None,
    params: float | None = None, settings: CutSettings, format: str = "ragged",
    seq_len: int | None = None, refine: bool = True, opening: Opening = Opening(),  # noqa: B008
) -> Foreseen:  # fmt: skip
    """Look without doing: refused where `stream` would be. Cost: reading config, tokenizer and headers."""
    chosen = streamable(settings)
    skeleton = sketch(model, on_the_cpu(opening))
    length = sequence_length(skeleton.loaded.model, skeleton.architecture, seq_len)
    budget = budget_of(macs=macs, params=params)
    plan = even_plan(skeleton.loaded.model, budget=budget, settings=chosen, format=format, seq_len=seq_len)
    promise = Promise(skeleton, length, memory, refine)
    return Foreseen(skeleton.architecture, plan, promise.before_opening(data))


def _fingerprint(skeleton: Skeleton, progress: Progress) -> str:
    """The fingerprint, with a bar that counts weights."""
    total, seen = len(skeleton.weights.files), list[str]()

    def count(name: str) -> None:
        seen.append(name)
        progress("read", len(seen), total)

    mark = skeleton.fingerprint(count)
    progress("read", total, total)
    return mark


def _asked(task: _Task, mark: str) -> dict[str, Any]:
    """What decides the result, to the last bit: only a run that was asked for the same is gone on with."""
    return {
        "fingerprint": mark, "files": _files(task.skeleton), "inputs": _inputs(task.data),
        "data": task.data.hash, "tokens": task.data.tokens, "seed": task.data.seed,
        "seq_len": task.data.seq_len, "batch_size": task.estimate.batch_size, "by": task.budget.by,
        "fraction": task.budget.fraction, "recipe": [task.settings.name, task.settings.model_dump()],
        "format": task.format,
        "refine": task.refined, "dtype": str(task.skeleton.dtype), "stored": str(task.skeleton.loaded.dtype),
        "threads": torch.get_num_threads(), "versions": versions(),
    }  # fmt: skip


def _files(skeleton: Skeleton) -> dict[str, Any]:
    """What tells that a checkpoint was changed, in places too where the fingerprint does not look or rounds: its config
    to the letter, size and time of every file of weights."""
    folder = skeleton.weights.folder.resolve()
    times = {file: (folder / file).stat() for file in sorted(set(skeleton.weights.files.values()))}
    config = hashlib.sha256(read_bytes(folder / "config.json")).hexdigest()
    return {"config": config, **{file: [found.st_size, found.st_mtime_ns] for file, found in times.items()}}


def _inputs(data: Data) -> str:
    """A hash of what the model is really given: another tokenizer makes other numbers of the same text."""
    digest = hashlib.sha256()
    for split, batches in data.splits.items():
        for batch in batches:
            for name, tensor in (*batch.inputs.items(), ("mask", batch.mask), ("labels", batch.labels)):
                if tensor is not None:
                    digest.update(f"{split} {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                    digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _carry_on(task: _Task, job: Job, mark: str, folder: Path, say: Any, **how: Any) -> Streamed:
    """Go on with what there is; from the beginning where it cannot be read."""
    with past_frozen():
        try:
            return _work(task, job, mark, folder, **how)
        except WorkTorn as torn:
            say(f"{torn}; starting anew")
            job.begin_anew()
            return _work(task, job, mark, folder, **how)


def _work(task: _Task, job: Job, mark: str, folder: Path, *, force: bool, whole: bool, memory: int) -> Streamed:
    with timed(task.seconds, "calibrate and profile"):
        statistics, curves = first_walk(task, job, mark)
    plan = allocate(
        task.skeleton.architecture, curves, budget=task.budget, seq_len=task.data.seq_len, settings=task.settings,
        weights=statistics.weights(), format=task.format, fingerprint=mark,
        ranks=rank_sites(task.skeleton.loaded.model, task.skeleton.architecture),
    )  # fmt: skip
    report_batches = [
        part for batch in task.data.splits["report"] for part in pieces(task.skeleton.loaded.model, batch)
    ]
    splits = {**task.data.splits, "report": report_batches}
    with timed(task.seconds, "cut and correct"):
        walked = second_walk(
            task.skeleton, job, plan, curves, statistics, splits, refined=task.refined, progress=task.progress
        )
    state_sizes(walked.small, task.skeleton.architecture, plan.format)
    with timed(task.seconds, "evaluate"):
        report = _reported(task, plan, walked, statistics, curves)
    task.progress("save and verify", 0, 1)
    _save(task, job, plan, report, walked.small, folder, force=force, whole=whole, memory=memory)
    task.progress("save and verify", 1, 1)
    return Streamed(folder, plan, report, task.estimate)


def first_walk(task: _Task, job: Job, mark: str) -> tuple[Statistics, dict[str, Curve]]:
    """Moments and curves of every block, each written as soon as it is there."""
    skeleton, n_blocks = task.skeleton, task.skeleton.architecture.n_blocks
    model, architecture = skeleton.loaded.model, skeleton.architecture
    first = job.done("calibrate")
    if not first:
        begin(job.statistics, provenance_of(skeleton.loaded, architecture, task.data, known=mark))
        job.curves(0).parent.mkdir(exist_ok=True)
    splits = {split: task.data.splits[split] for split in ("fit", "select")}
    ranks = rank_sites(model, architecture) if task.settings.attention != "heads" else ()
    task.progress("calibrate", first, n_blocks)
    there = OnDisk(skeleton, job, job.states)
    blocks = collect(model, architecture, splits, residence=there) if first < n_blocks else iter(())
    require_whole(*(moments_file(job.statistics, i) for i in range(first)))
    for block in blocks:
        write_block(job.statistics, block)
        keep_curves(job.curves(block.block), block_curves(model, architecture, block, task.settings, ranks, ()))
        _settle(job, block.block)
        give_back()
        there.finish("calibrate", block.loudness)
        task.progress("calibrate", block.block + 1, n_blocks)
    loudness = job.notes("calibrate")
    write_weights(job.statistics, {site.name: loudness[site.block] for site in architecture})
    curves: dict[str, Curve] = {}
    for i in range(n_blocks):
        found = read_curves(job.curves(i))
        if not found:
            raise WorkTorn(f"{job.curves(i)} cannot be read")
        curves |= found
    return _opened(job), curves


def _settle(job: Job, i: int) -> None:
    """Let all of block i be on the disk before it counts as finished."""
    if not job.curves(i).is_file():
        raise CannotWrite(f"{job.curves(i)} cannot be written; free some space there")
    with one_clear_line(job.folder):
        for path in (job.statistics / "stats.json", moments_file(job.statistics, i), job.curves(i)):
            flush(path)


def _opened(job: Job) -> Statistics:
    try:
        return open_statistics(job.statistics)
    except PlanDoesNotFit as error:
        raise WorkTorn(f"{job.statistics / 'stats.json'} cannot be read") from error


def _reported(task: _Task, plan: Plan, walked: Walked, statistics: Statistics, curves: dict[str, Curve]) -> Report:
    """Before and after on the report split, from the two streams: only the last norm and the head are run."""
    loaded, architecture, data = task.skeleton.loaded, task.skeleton.architecture, task.data
    task.progress("evaluate", 0, 1)
    report = describe_result(loaded, walked.small, plan)
    ends = (
        [(batch, pair.teacher.state) for batch, pair in walked.report],
        [(batch, pair.student.state) for batch, pair in walked.report],
    )
    with ending_in(loaded.model, architecture, ends[0]), ending_in(walked.small, architecture, ends[1]):
        metrics = compare(loaded.model, walked.small, [batch for batch, _ in walked.report])
    task.progress("evaluate", 1, 1)
    run = Run(loaded, loaded.model, task.format, statistics=statistics, curves=curves)
    front = alternatives(run, task.budget, task.settings)
    return replace(
        report, metrics=[metric.to_json() for metric in metrics], front=front, seconds=task.seconds,
        correction=[asdict(each) for each in walked.corrections],
        warnings=[*report.warnings, NOTE, *thin_data(architecture, data), *unnamed_data(data.reading, data.name)],
        data=data_provenance(architecture, data),
    )  # fmt: skip


def _save(
    task: _Task, job: Job, plan: Plan, report: Report, small: PreTrainedModel, folder: Path, *, force: bool,
    whole: bool, memory: int,
) -> None:  # fmt: skip
    """Put the shards together under the final name; their shapes are compared with what the config promises, and a
    model that fits is reloaded in a fresh process."""
    skeleton, loaded = task.skeleton, task.skeleton.loaded
    outside = job.folder / "shards" / "outside.safetensors"
    write_tensors(outside, outside_tensors(small, skeleton.architecture), loaded.dtype)
    shards = [*(job.shard(i) for i in range(skeleton.architecture.n_blocks)), outside]
    with writing(folder, "checkpoint", force=force) as partial:
        assemble(partial, shards, small, loaded.dtype, loaded.folder)
        write_belongings(partial, loaded.processor, loaded.companions)
        found = report.to_dict()
        texts = {
            "plan.json": plan.to_json(), "report.json": json_text(found),
            "report.html": html_page(found, folder=folder.name), "README.md": model_card(report, folder=folder.name),
        }  # fmt: skip
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        sketch(partial, Opening("cpu", skeleton.dtype))
        if whole and anonymous_memory() + 3 * report.small.params * 4 <= memory:
            verify_reload(load(partial), partial)

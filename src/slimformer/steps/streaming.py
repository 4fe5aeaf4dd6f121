"""Compress a model that does not fit into memory: `calibrated` and `make`, with a residence on disk.

Every walk (metric, moments, curves, probes, cut, correction) needs one block's weights at a time; between blocks states
are kept in mapped files (`models.state_store`). Each goes on at the last finished block when the run was killed. What
is made is what `compress` makes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from slimformer.calibrate.documents import Source
from slimformer.calibrate.gather import Data, Reading, gather, sequence_length
from slimformer.checkpoint.atomic import require_apart, require_free, writing
from slimformer.checkpoint.load import load
from slimformer.checkpoint.save import write_belongings, write_texts
from slimformer.checkpoint.shards import assemble, outside_tensors, store_as, write_tensors
from slimformer.checkpoint.verify import verify as verify_reload
from slimformer.errors import WorkTorn
from slimformer.evaluate.assessment import data_provenance, describe_result
from slimformer.evaluate.compare import compare
from slimformer.evaluate.data_notes import thin_data, unnamed_data
from slimformer.evaluate.perplexity import pieces
from slimformer.evaluate.report import Report
from slimformer.files.reading import read_bytes
from slimformer.files.versions import versions
from slimformer.messages.progress import Progress, silent
from slimformer.messages.short import Short
from slimformer.models import Architecture, describe
from slimformer.models.opening import Opening
from slimformer.models.stream import Skeleton, sketch
from slimformer.models.walk import ending_in, last_states
from slimformer.nn.replaced import require_uncut
from slimformer.plan import Budget, Plan, check_budget
from slimformer.plan.memory import Estimate, Work, in_words
from slimformer.plan.settings import CutSettings
from slimformer.run import Run, timed
from slimformer.steps.alternatives import alternatives
from slimformer.steps.calibration import calibrated
from slimformer.steps.make import even_plan, make
from slimformer.steps.memory import MemoryLimit, anonymous_memory, past_frozen, require_disk
from slimformer.steps.on_disk import OnDisk
from slimformer.steps.refine import Refine
from slimformer.steps.result import texts_of
from slimformer.steps.streaming_job import Job, asked_before, job_for, work_folder
from slimformer.steps.streaming_limits import on_the_cpu

NOTE = "the model was read block by block: latency, other texts and examples were not measured"


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
class Request:
    """What is to be made of a checkpoint, and within how many bytes of memory; `reading` is how `gather` reads data."""

    model: str | Path
    data: Source | torch.Tensor
    memory: int
    budget: Budget
    settings: CutSettings
    format: str = "ragged"
    seq_len: int | None = None
    refine: bool = True
    opening: Opening = field(default_factory=Opening)
    reading: Mapping[str, Any] = field(default_factory=dict)

    def sketched(self) -> Skeleton:
        """The model without its weights, on the CPU."""
        return sketch(self.model, on_the_cpu(self.opening))

    def limit(self, skeleton: Skeleton) -> MemoryLimit:
        """The memory allowed, for this work."""
        length = sequence_length(skeleton.loaded.model, skeleton.architecture, self.seq_len)
        return MemoryLimit(skeleton, self.memory, Work.of(self.settings, length, refined=self.refine))


def stream(
    request: Request,
    folder: str | Path,
    *,
    force: bool = False,
    verify: bool = True,
    progress: Progress = silent,
    say: Callable[[str], object] = lambda _line: None,
) -> Streamed:
    """Shrink a checkpoint to a fraction of its block MACs or parameters within a memory and write it to `folder`.

    The limit is one of anonymous memory (`plan.memory`): it holds, or is refused before the work. The work is kept
    next to `folder` until it is finished; the same call resumes it. Weights are read on the CPU. The result is that of
    `compress`, to the last bit where as many rows are read at a time. Cost: that of `compress`, and reading the weights
    once for every walk.
    """
    folder, seconds = Path(folder), dict[str, float]()
    require_apart(folder, request.model if isinstance(request.model, Path) or Path(request.model).exists() else None)
    require_free(folder, force)
    with timed(seconds, "load"):
        skeleton = request.sketched()
    model, architecture = skeleton.loaded.model, skeleton.architecture
    require_uncut(model)
    limit = request.limit(skeleton)
    check_budget(
        architecture, request.budget, seq_len=limit.work.seq_len, settings=request.settings, format=request.format
    )
    rows = limit.before_opening(request.data, asked_before(folder).get("batch_size")).batch_size
    with timed(seconds, "load"):
        skeleton.read_outside()
    with timed(seconds, "data"):
        reading = Reading(seq_len=request.seq_len, batch_size=rows, **request.reading)
        data = gather(request.data, model, skeleton.loaded.processor, architecture, reading)
    estimate = limit.before_work(data, rows)
    say(f"memory: {estimate}; allowed {in_words(request.memory)}")
    require_disk(limit.disk(data, request.budget.fraction), work_folder(folder))
    with timed(seconds, "read"):
        mark = _fingerprint(skeleton, progress)
    run = Run(
        skeleton.loaded, model, request.format, request.seq_len, request.data, data, progress=progress, seconds=seconds,
        after=(Refine(name=request.settings.name),) if request.refine else (),
    )  # fmt: skip
    same = {"fingerprint": mark, "batch_size": estimate.batch_size, "refine": request.refine}
    with job_for(folder, same | _asked(run, skeleton, request.budget, request.settings)) as job:
        say(f"{'going on with' if job.resumed else 'working in'} {work_folder(folder)}; if it is stopped, the same "
            "command goes on from there")  # fmt: skip
        task = _Task(run, skeleton, job, mark, request.budget, request.settings)
        smaller, report = _carry_on(task, say)
        progress("save and verify", 0, 1)
        _save(smaller, report, task, folder, force=force, whole=request.memory if verify else 0)
        progress("save and verify", 1, 1)
    return Streamed(folder, smaller.decided, report, estimate)


@dataclass(frozen=True)
class Foreseen:
    """What would be kept if every block lost the same share, and the memory it would take to make it."""

    architecture: Architecture
    plan: Plan
    estimate: Estimate


def foresee(request: Request) -> Foreseen:
    """Look without doing: refused where `stream` would be. Cost: reading config, tokenizer and headers."""
    skeleton = request.sketched()
    plan = even_plan(
        skeleton.loaded.model,
        budget=request.budget,
        settings=request.settings,
        format=request.format,
        seq_len=request.seq_len,
    )
    return Foreseen(skeleton.architecture, plan, request.limit(skeleton).before_opening(request.data))


def _fingerprint(skeleton: Skeleton, progress: Progress) -> str:
    """The fingerprint, with a bar that counts weights."""
    total, seen = len(skeleton.weights.files), list[str]()

    def count(name: str) -> None:
        seen.append(name)
        progress("read", len(seen), total)

    mark = skeleton.fingerprint(count)
    progress("read", total, total)
    return mark


def _asked(run: Run, skeleton: Skeleton, budget: Budget, settings: CutSettings) -> dict[str, Any]:
    """What decides the result, to the last bit: only a run that was asked for the same is resumed."""
    data = run.data
    assert data is not None
    return {
        "files": _files(skeleton), "inputs": _inputs(data), "data": data.hash, "tokens": data.tokens,
        "seed": data.seed, "seq_len": data.seq_len, "by": budget.by, "fraction": budget.fraction,
        "recipe": [settings.name, settings.model_dump()], "format": run.format, "dtype": str(skeleton.dtype),
        "stored": str(skeleton.loaded.dtype), "threads": torch.get_num_threads(), "versions": versions(),
    }  # fmt: skip


def _files(skeleton: Skeleton) -> dict[str, Any]:
    """What tells that a checkpoint was changed, in places too where the fingerprint does not look or rounds: its config
    to the letter, size and time of every file of weights."""
    folder = skeleton.weights.folder.resolve()
    times = {file: (folder / file).stat() for file in sorted(set(skeleton.weights.files.values()))}
    config = hashlib.sha256(read_bytes(folder / "config.json")).hexdigest()
    return {"config": config, **{file: [status.st_size, status.st_mtime_ns] for file, status in times.items()}}


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


@dataclass(frozen=True)
class _Task:
    """A run that can be stopped, and what it is to make."""

    start: Run
    skeleton: Skeleton
    job: Job
    mark: str
    budget: Budget
    settings: CutSettings

    def do(self) -> tuple[Run, Report]:
        """Calibrate, make and measure, as `compress` does, from where an earlier run was stopped."""
        residence = OnDisk(self.skeleton, self.job, self.mark)
        run = replace(self.start, folder=self.job.statistics, residence=residence)
        run = calibrated(run, self.settings)
        smaller = make(run, self.budget, self.settings)
        smaller = smaller.reporting(front=alternatives(run, self.budget, self.settings))
        with run.timed("evaluate"):
            return smaller, _measured(smaller)


def _carry_on(task: _Task, say: Any) -> tuple[Run, Report]:
    """Go on with what there is; from the beginning where it cannot be read."""
    with past_frozen():
        try:
            return task.do()
        except WorkTorn as torn:
            say(f"{torn}; starting anew")
            task.job.begin_anew()
            return task.do()


@torch.no_grad()
def _measured(run: Run) -> Report:
    """Before and after on the report split, from the states after the last block: then only the last norm and the head
    are run."""
    dense, small, data, architecture = run.dense, run.model, run.data, describe(run.dense)
    assert data is not None
    run.progress("evaluate", 0, 1)
    batches = [part for batch in run.splits["report"] for part in pieces(dense, batch)]
    ends = [
        list(zip(batches, last_states(model, architecture, batches, f"report-{name}", home), strict=True))
        for model, name, home in ((dense, "dense", run.residence), (small, "small", run.residence.of_copy))
    ]
    with ending_in(dense, architecture, ends[0]), ending_in(small, architecture, ends[1]):
        metrics = compare(dense, small, batches)
    run.progress("evaluate", 1, 1)
    report = describe_result(run.loaded, small, run.decided)
    return replace(
        report, metrics=[metric.to_json() for metric in metrics], seconds=run.seconds,
        correction=[asdict(each) for each in run.corrections],
        warnings=[*report.warnings, NOTE, *thin_data(architecture, data), *unnamed_data(data.reading, data.name)],
        data=data_provenance(architecture, data), **run.sections,
    )  # fmt: skip


def _save(run: Run, report: Report, task: _Task, folder: Path, *, force: bool, whole: int) -> None:
    """Put the blocks together under the final name; their shapes are compared with what the config promises, and a
    model that fits into `whole` bytes is reloaded in a fresh process."""
    skeleton, loaded, job = task.skeleton, task.skeleton.loaded, task.job
    outside = job.folder / "shards" / "outside.safetensors"
    write_tensors(outside, outside_tensors(run.model, skeleton.architecture), loaded.dtype)
    assert isinstance(run.residence, OnDisk)
    shards = [run.residence.states.file(i) for i in range(skeleton.architecture.n_blocks)]
    if loaded.dtype != skeleton.dtype:
        shards = [store_as(job.shard(i), shard, loaded.dtype) for i, shard in enumerate(shards)]
    with writing(folder, "checkpoint", force=force) as partial:
        assemble(partial, [*shards, outside], run.model, loaded.dtype, loaded.folder)
        write_belongings(partial, loaded.processor, loaded.companions)
        write_texts(partial, texts_of(run.decided, report, folder))
        sketch(partial, Opening("cpu", skeleton.dtype))
        if anonymous_memory() + 3 * report.small.params * 4 <= whole:
            verify_reload(load(partial), partial)

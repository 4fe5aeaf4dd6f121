"""Runs spread over processes. A finished run is not run again; one that fails does not stop the others."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch

from slimformer.lab.folder import LabFolder
from slimformer.lab.settings import RunSettings
from slimformer.lab.worker import run_one, work
from slimformer.messages.progress import Progress

Ended = Callable[[RunSettings, str], None]  # a run, and what went wrong


@dataclass
class _Worker:
    process: Any
    line: Any
    busy: int | None = None  # the run it is at


def run_all(
    runs: Sequence[RunSettings], folder: LabFolder, *, workers: int, every: float, progress: Progress, ended: Ended
) -> None:
    """Train what has no result yet, the first in the list first; `ended` hears of each as it ends."""
    waiting = [run for run in runs if folder.result(run) is None]
    tally = _Tally(len(waiting), progress)
    if workers <= 1:
        _in_turn(waiting, folder, every, tally, ended)
        return
    team = [_hire(folder, every) for _ in range(min(workers, len(waiting)))]
    try:
        _spread(waiting, team, folder, every, tally, ended)
    finally:
        for worker in team:
            _dismiss(worker)


class _Tally:
    """Runs ended, and steps done of all steps that are known of."""

    def __init__(self, runs: int, progress: Progress) -> None:
        self.runs, self.progress, self.over = runs, progress, 0
        self.steps: dict[int, tuple[int, int]] = {}
        if runs:
            progress("runs", 0, runs)

    def step(self, number: int, done: int, total: int) -> None:
        self.steps[number] = (done, total)
        shares = sum(done / total for done, total in self.steps.values())
        self.progress("percent", int(100 * shares / self.runs), 100)

    def end(self, number: int) -> None:
        self.over += 1
        self.step(number, 1, 1)
        self.progress("runs", self.over, self.runs)


def _in_turn(waiting: Sequence[RunSettings], folder: LabFolder, every: float, tally: _Tally, ended: Ended) -> None:
    """In this process, with one thread like the others."""
    with one_thread():
        for number, run in enumerate(waiting):
            wrong = run_one(run, folder, every, partial(tally.step, number))
            tally.end(number)
            ended(run, wrong)


def _spread(
    waiting: Sequence[RunSettings], team: list[_Worker], folder: LabFolder, every: float, tally: _Tally, ended: Ended
) -> None:  # fmt: skip
    queue = list(enumerate(waiting))
    left = len(queue)
    for worker in team:
        _give(worker, queue)
    while left:
        lines = {worker.line: worker for worker in team if worker.busy is not None}
        for line in wait(list(lines)):
            worker = lines[line]  # type: ignore[index]
            number = worker.busy
            assert number is not None
            try:
                kind, _, news = worker.line.recv()
            except EOFError:  # killed from outside, as for want of memory
                worker.process.join()
                kind, news = "ended", f"its process ended with code {worker.process.exitcode}; is there enough memory?"
                team[team.index(worker)] = worker = _hire(folder, every)
            if kind == "step":
                tally.step(number, *news)
                continue
            left -= 1
            tally.end(number)
            ended(waiting[number], news)
            _give(worker, queue)


def _hire(folder: LabFolder, every: float) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, folder, every, os.getpid()), daemon=True)
    with _one_thread_inherited():
        process.start()
    theirs.close()  # so that its end is heard here
    return _Worker(process, ours)


def _give(worker: _Worker, queue: list[tuple[int, RunSettings]]) -> None:
    worker.busy = None
    if queue:
        worker.busy = queue[0][0]
        worker.line.send(queue.pop(0))


def _dismiss(worker: _Worker) -> None:
    with contextlib.suppress(OSError):
        worker.line.send(None) if worker.busy is None else worker.process.terminate()
    worker.process.join(timeout=10)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.line.close()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """As many processes as cores train faster, each with one thread, than one with all."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _one_thread_inherited() -> Iterator[None]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

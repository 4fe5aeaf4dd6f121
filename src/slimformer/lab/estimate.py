"""How long an experiment will take, from a few real steps of every shape of model and batch in it."""

from __future__ import annotations

import heapq
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from slimformer.errors import BadExperiment
from slimformer.lab.feed import Feed, generator, open_feed
from slimformer.lab.model import build, in_one_line, parameters
from slimformer.lab.runner import Progress, one_thread
from slimformer.lab.settings import RunSettings
from slimformer.lab.start import folder_of
from slimformer.lab.train import EVALUATION_ROWS, batch_index, make_optimiser, steps_of

TIMED_STEPS, TIMED_SECONDS = 5, 2.0


@dataclass(frozen=True)
class Estimate:
    """What one run of a row costs, on one thread."""

    row: str
    runs: int
    parameters: int
    steps: int
    step_seconds: float
    seconds: float


def estimate(runs: Sequence[RunSettings], texts: Path, progress: Progress) -> list[Estimate]:
    """One line for each row. Rows that differ in nothing that costs time (seed, rate, epochs) are timed once."""
    timed: dict[str, tuple[float, float, int]] = {}
    rows: dict[str, list[RunSettings]] = {}
    for run in runs:
        rows.setdefault(run.row, []).append(run)
    lines = []
    with one_thread():
        for done, (row, same) in enumerate(rows.items()):
            progress("time the steps", done, len(rows))
            run, feed = same[0], open_feed(same[0], texts)
            key = _shape(run)
            timed[key] = timed.get(key) or _tried(run, feed)
            step, evaluation, count = timed[key]
            total, between = steps_of(run, feed)
            seconds = total * step + evaluation * _evaluated(run, feed, math.ceil(total / between))
            lines.append(Estimate(row, len(same), count, total, step, seconds))
        progress("time the steps", len(rows), len(rows))
    return lines


def hours(lines: Sequence[Estimate], workers: int) -> float:
    """Hours until the last of so many workers is done, runs given out in order."""
    ends = [0.0] * max(1, workers)
    for line in lines:
        for _ in range(line.runs):
            heapq.heapreplace(ends, ends[0] + line.seconds)
    return max(ends) / 3600


def _shape(run: RunSettings) -> str:
    settings = run.model_dump(mode="json", include={"task", "model", "start", "data", "augmentation", "batch_size"})
    return json.dumps(settings, sort_keys=True)


def _evaluated(run: RunSettings, feed: Feed, times: int) -> int:
    """Examples evaluated in a run."""
    return times * feed.sizes["validation"] + min(feed.sizes["train"], run.train_evaluation)


def _tried(run: RunSettings, feed: Feed) -> tuple[float, float, int]:
    """The times, or in one line why this row cannot be trained."""
    try:
        return _time(run, feed)
    except BadExperiment as error:
        raise BadExperiment(f"{run.row}: {error}") from error
    except Exception as error:  # a model that was built and does not fit the data: whatever torch says of it
        raise BadExperiment(f"{run.row}: the first steps failed: {in_one_line(error)}") from error


def _time(run: RunSettings, feed: Feed) -> tuple[float, float, int]:
    """Seconds of a training step and of evaluating an example, and parameters. The first steps warm up.

    Of the processor, not of the wall: a machine that is busy for a moment does not count.
    """
    with torch.random.fork_rng(devices=[]):
        # weights cost the same whatever they are: those that are still to be pretrained are fresh here
        model = build(run.task, run.model, feed.facts, None if run.start is None else folder_of(run.start))
        optimiser = make_optimiser(model, run.optimiser)
        model.train()
        taken: list[float] = []
        while len(taken) < 2 or (len(taken) < TIMED_STEPS + 2 and sum(taken) < TIMED_SECONDS):
            started = time.process_time()
            index = batch_index(run.seed, len(taken), feed.sizes["train"], run.batch_size)
            loss = model(**feed.load("train", index, generator(run.seed, "draw", len(taken)))).loss
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            taken.append(time.process_time() - started)
        model.eval()
        n = min(EVALUATION_ROWS if run.task == "image-classes" else 32, feed.sizes["validation"])
        started = time.process_time()
        with torch.no_grad():
            model(**feed.load("validation", torch.arange(n), None))
        evaluation = (time.process_time() - started) / n
    return statistics.median(taken[1:]), evaluation, parameters(model)

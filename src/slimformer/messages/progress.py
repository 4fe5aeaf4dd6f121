"""How work says how far it is: a function that is called with a stage, the steps done and the steps in all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Progress = Callable[[str, int, int], None]
PARTS = 10  # lines for a stage, after its first


def silent(_stage: str, _done: int, _total: int) -> None:
    """No progress shown."""


@contextmanager
def shown(choice: bool | Progress) -> Iterator[Progress]:
    """What a caller of the library asked for, as a function: True are bars of tqdm, False is nothing, a function stays.

    Bars that are not full when the work ends are closed where they stand.
    """
    if choice is not True:
        yield choice or silent
        return
    bars = _Bars()
    try:
        yield bars
    finally:
        bars.close()


class _Bars:
    """A bar of tqdm for each stage: in a notebook a widget, where there are widgets, else a line of text."""

    def __init__(self) -> None:
        self.open: dict[str, Any] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        from tqdm.auto import tqdm

        bar = self.open.get(stage)
        if bar is None:
            bar = self.open[stage] = tqdm(total=total, desc=stage)
        bar.n = done
        bar.refresh()
        if done >= total:
            self.open.pop(stage).close()

    def close(self) -> None:
        for bar in self.open.values():
            bar.close()


@dataclass
class _Stage:
    """When a stage began and at which step, the last step, and how many tenths of it have been said."""

    began: float
    first: int
    done: int
    parts: int = -1


class Lines:
    """Progress where nobody watches a bar (a file, a pipe, a CI log): a line when a stage begins and for every tenth.

    Seconds are those of the stage; how many are left follows from those that have passed.
    """

    def __init__(self, write: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self.write, self.now = write, now
        self.stages: dict[str, _Stage] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        at = self.stages.get(stage)
        if at is None or done < at.done:  # a stage that begins again has gone back to its first step
            at = self.stages[stage] = _Stage(self.now(), done, done)
        at.done = done
        parts = PARTS * done // total if total > 0 else PARTS
        if parts > at.parts:
            at.parts = parts
            self.write(self._line(stage, at, total))

    def _line(self, stage: str, at: _Stage, total: int) -> str:
        elapsed = self.now() - at.began
        percent = 100 * at.done // total if total > 0 else 100
        line = f"{stage:>16} {percent:3d} %  {clock(elapsed)} elapsed"
        if at.first < at.done < total:
            left = elapsed * (total - at.done) / (at.done - at.first)
            line += f", {clock(left)} left"
        return line


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"

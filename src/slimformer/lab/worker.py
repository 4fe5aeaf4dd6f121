"""A process that trains one run after the other, with one thread."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import torch

from slimformer.errors import SlimformerError
from slimformer.lab.feed import open_feed
from slimformer.lab.folder import LabFolder
from slimformer.lab.settings import RunSettings
from slimformer.lab.train import Told, train

TELL_SECONDS = 0.5


def work(line: Connection, folder: LabFolder, every: float, parent: int) -> None:
    """Take runs from the line until it says None; tell it steps, and how each ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides, and ends us
    signal.signal(signal.SIGTERM, _leave)
    from slimformer.messages.quiet import quieten_libraries

    quieten_libraries()
    torch.set_num_threads(1)
    while (task := line.recv()) is not None:
        number, run = task
        line.send(("ended", number, run_one(run, folder, every, _teller(line, number, parent))))


def run_one(run: RunSettings, folder: LabFolder, every: float, tell: Told) -> str:
    """Train and put the result in place; what went wrong in one line, or nothing."""
    try:
        feed = open_feed(run, folder.texts)
        result, model = train(run, feed, folder.state_file(run), every=every, tell=tell, start=folder.start(run))
        folder.write(run, result, model, feed.processor)
    except SlimformerError as error:
        return str(error)
    except Exception as error:  # whatever a model or its data do: one run must not end the others
        reason = " ".join(str(error).split())[:300]
        return f"{type(error).__name__}: {reason}"
    return ""


def _teller(line: Connection, number: int, parent: int) -> Told:
    last = [0.0]

    def tell(done: int, total: int) -> None:
        if os.getppid() != parent:  # killed: nobody will collect this
            sys.exit(1)
        now: float = time.monotonic()
        if now - last[0] > TELL_SECONDS or done == total:
            last[0] = now
            line.send(("step", number, (done, total)))

    return tell


def _leave(number: int, _frame: FrameType | None) -> Any:
    raise SystemExit(128 + number)

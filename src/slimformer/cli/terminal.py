"""What a terminal needs around the commands: progress, one-line errors, exit codes, signals."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from slimformer.cli.output import err
from slimformer.errors import SlimformerError
from slimformer.messages.notes import OpeningNote
from slimformer.messages.progress import Lines, Progress, silent
from slimformer.messages.quiet import quieten_libraries
from slimformer.messages.words import shell_words

BAD_INPUT = 2
SIGNALS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "terminated"}


class Stopped(SystemExit):
    """Ctrl-C, a polite kill or a closed terminal: everything is cleaned up on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.how = SIGNALS[signal.Signals(number).name]


def run(app: typer.Typer) -> int:
    """Run the commands; say facts in one line."""
    quieten_libraries()
    _replace_unprintable()
    try:
        with _stoppable(), shell_words(), _notes_shown():
            return int(typer.main.get_command(app).main(prog_name="slimformer", standalone_mode=False) or 0)
    except SlimformerError as error:
        return _say(str(error))
    except typer.Exit as error:
        return int(error.exit_code)
    except Stopped as error:
        _say(f"{error.how}; nothing is left half-written")
        return int(error.code or 0)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help itself has been shown
            return 0
        fact = _fact(error)
        if fact is None:
            raise
        return _say(fact)


@contextmanager
def _notes_shown() -> Iterator[None]:
    """Notes on how a model was opened go to standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", OpeningNote)
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, OpeningNote):
                err.print(f"note: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)
            else:
                before(message, category, *rest, **more)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _fact(error: Exception) -> str | None:
    """What a user can correct, in the words of the libraries below; None for mistakes of this program."""
    if hasattr(error, "format_message"):  # usage errors of typer, or of the click inside it
        context = getattr(error, "ctx", None)
        hint = f"; see {context.command_path} --help" if context is not None else ""
        return f"{error.format_message().rstrip('.')}{hint}"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}; nothing is left half-written"
    if re.search(r"\(os error \d+\)", str(error)):  # safetensors and tokenizers are written in Rust
        return f"{error}; nothing is left half-written"
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "can't allocate memory" in str(error):
        return "there is not enough memory; give fewer --tokens, a smaller --seq-len, or another --device"
    return None


def _say(message: str) -> int:
    err.print(f"slimformer: {' '.join(message.split())}", markup=False, emoji=False, highlight=False, soft_wrap=True)
    return BAD_INPUT


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let signals end the program in one way; one that somebody has asked to ignore or to treat otherwise stays so."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    numbers = [signal.Signals[name] for name in SIGNALS if hasattr(signal, name)]
    mine = threading.current_thread() is threading.main_thread()
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in numbers if mine and signal.getsignal(number) in usual}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _replace_unprintable() -> None:
    """A terminal that cannot show ↓ gets a question mark, not a traceback."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure:
        reconfigure(errors="replace")


@contextmanager
def showing_progress(*, hidden: bool) -> Iterator[Progress]:
    """Progress on standard error: bars on a terminal, lines elsewhere; of several processes the first speaks."""
    hidden = hidden or os.environ.get("RANK", "0") != "0"
    with _notes(hidden=hidden), _progress(hidden=hidden) as progress:
        yield progress


class _Notes(logging.Handler):
    """What is said before the work, above the bars."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else ""
        err.print(f"note: {record.getMessage()}", style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _notes(*, hidden: bool) -> Iterator[None]:
    logger, notes = logging.getLogger("slimformer"), _Notes()
    logger.setLevel(logging.ERROR if hidden else logging.INFO)
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)


@contextmanager
def _progress(*, hidden: bool) -> Iterator[Progress]:
    if hidden:
        yield silent
    elif err.is_terminal and not err.is_dumb_terminal:
        with _bars() as progress:
            yield progress
    else:
        yield Lines(_write_line)


def _write_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _bars() -> Iterator[Progress]:
    """A bar for each stage. After an error they vanish: it is one line, not one line under bars."""
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description:>16}"), rich.BarColumn(), rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(), rich.TextColumn("left"), rich.TimeRemainingColumn(),
    )  # fmt: skip
    bars = rich.Progress(*columns, console=err)
    tasks: dict[str, rich.TaskID] = {}

    def advance(stage: str, done: int, total: int) -> None:
        bars.start()
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done, total=total)

    try:
        yield advance
    except BaseException:
        bars.live.transient = True
        raise
    finally:
        bars.live.stop()


def require_alone(command: str | None) -> None:
    """Refuse to run under torchrun what several processes cannot share."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and command not in {None, "calibrate", "compress", "heal"}:
        raise SlimformerError(f"`{command}` is for one process; torchrun is for calibrate, compress and heal")

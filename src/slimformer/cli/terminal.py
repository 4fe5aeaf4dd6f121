"""What a terminal needs around the commands: values of options, progress, one-line errors, exit codes, signals."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slimformer.calibrate.documents import UNNAMED
from slimformer.errors import BudgetOutOfReach, SlimformerError
from slimformer.messages.words import shell_words
from slimformer.models.opening import Opening, OpeningNote, usable_precision
from slimformer.plan.asked import NOUNS
from slimformer.plan.budget import Budget, budget_of

BAD_INPUT = 2
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
SIGNALS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "terminated"}


class Stopped(SystemExit):
    """Ctrl-C, a polite kill or a closed terminal: everything is cleaned up on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.how = SIGNALS[signal.Signals(number).name]


def run(app: typer.Typer, err: Console) -> int:
    """Run the commands; say facts in one line."""
    quieten()
    try:
        with _stoppable(), shell_words(), _notes_on(err):
            return int(typer.main.get_command(app).main(prog_name="slimformer", standalone_mode=False) or 0)
    except SlimformerError as error:
        return _say(err, str(error))
    except typer.Exit as error:
        return int(error.exit_code)
    except Stopped as error:
        _say(err, f"{error.how}; nothing is left half-written")
        return int(error.code or 0)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help itself has been shown
            return 0
        fact = _fact(error)
        if fact is None:
            raise
        return _say(err, fact)


@contextmanager
def _notes_on(err: Console) -> Iterator[None]:
    """What is to be said of how a model was opened goes to standard error."""
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
    """What a user can do something about, in the words of the libraries below; None for what only we can mend."""
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


def _say(err: Console, message: str) -> int:
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


def quieten() -> None:
    """Loading bars and advice of the libraries below would bury our own output."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore")
    import logging

    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure:  # a terminal that cannot show ↓ gets a question mark, not a traceback
        reconfigure(errors="replace")


@contextmanager
def progress_bars(err: Console, *, hidden: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage, on standard error. After an error they vanish: it is one line, not one line under bars."""
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=err)
    tasks: dict[str, TaskID] = {}
    logging.getLogger("slimformer").setLevel(logging.ERROR if hidden else logging.WARNING)  # notes before the work

    def advance(stage: str, done: int, total: int) -> None:
        if hidden or os.environ.get("RANK", "0") != "0":  # of several processes the first speaks
            return
        bars.start()
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done)

    try:
        yield advance
    except BaseException:
        bars.live.transient = True
        raise
    finally:
        bars.live.stop()


def require_alone(command: str | None) -> None:
    """Refuse to run under torchrun what several processes cannot share."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and command not in {None, "calibrate", "compress"}:
        raise SlimformerError(f"`{command}` is for one process; torchrun is for calibrate and compress")


def python_line(code: str) -> str:
    """A line that runs `code`, to be copied into a shell."""
    plain = not re.search(r'["$`\\!]', code)
    return f'python -c "{code}"' if plain else f"python -c {shlex.quote(code)}"


def budget(macs: str | None, params: str | None = None, latency: str | None = None) -> Budget:
    """The one budget given on the command line."""
    texts = {"macs": macs, "params": params, "latency": latency}
    return budget_of(**{by: None if text is None else fraction(by, text) for by, text in texts.items()})


def fraction(by: str, text: str) -> float:
    """The number in a text; percents are understood and refused."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        found = float(number)
    except ValueError:
        raise BudgetOutOfReach(
            f"--{by} {text!r} is not a number; give the fraction of the {NOUNS[by]} to keep, e.g. 0.5"
        ) from None
    if percent:
        raise BudgetOutOfReach(f"--{by} {text} is not a fraction; did you mean {found / 100:g}?")
    return found


def size_in_bytes(option: str, text: str) -> int:
    """A size such as 4GB, 512 MiB or 3e9 in bytes; GB is a power of ten, as disks are sold, GiB one of two."""
    stripped = text.strip().lower().removesuffix("b")
    number = stripped.rstrip("kmgti ")
    try:
        size = float(number) * UNITS[stripped[len(number) :].strip()]
    except (ValueError, KeyError):
        size = 0.0
    if not 0 < size < 2**60:
        raise SlimformerError(f"{option} {text!r} is not a size; give e.g. 4GB or 512MiB")
    return int(size)


def paragraphs(text: str) -> str:
    """A docstring for a terminal of any width: lines of one paragraph joined."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def joined(data: list[str] | None) -> str:
    """The sources of `--data a --data b` as one name, as in `--data a,b`; that of the default where there are none."""
    return ",".join(data) if data else UNNAMED


def column_names(text: str) -> list[str] | None:
    """The names in `sentence1,sentence2`."""
    return [name.strip() for name in text.split(",") if name.strip()] or None


def with_precision(opening: Opening, dtype: str) -> Opening:
    """How to open a model that is calibrated in this precision."""
    return replace(opening, dtype=usable_precision(precision(dtype), opening.device))


def precision(name: str) -> torch.dtype:
    """The data type of that name."""
    known = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise SlimformerError(f"--dtype {name!r} is not known; choose from {', '.join(known)}")
    return known[name]

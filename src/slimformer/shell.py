"""What a terminal needs around the commands: progress bars, one-line errors, exit codes."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slimformer.errors import SlimformerError

BAD_INPUT, INTERRUPTED = 2, 130


def run(app: typer.Typer, err: Console) -> int:
    """Run the commands; say facts in one line."""
    quieten()
    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
        return int(code or 0)
    except SlimformerError as error:
        return _say(err, str(error))
    except typer.Exit as error:
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _say(err, "interrupted; nothing was written", INTERRUPTED)
    except typer.TyperException as error:
        return _say(err, _usage(error))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _say(err, f"no space left on the device ({error.filename or 'while writing'}); nothing was written")
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            return _say(err, f"{error.filename}: not allowed ({error.strerror})")
        raise


def _say(err: Console, message: str, code: int = BAD_INPUT) -> int:
    err.print(f"slimformer: {' '.join(message.split())}", markup=False, highlight=False, soft_wrap=True)
    return code


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context is not None else ""
    return f"{error.format_message()}{hint}"


def quieten() -> None:
    """Loading bars and advice of the libraries below would bury our own output."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore")
    import logging

    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("datasets").setLevel(logging.ERROR)


@contextmanager
def progress_bars(err: Console, *, hidden: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage, on standard error."""
    if hidden:
        yield lambda _stage, _done, _total: None
        return
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield advance

"""Arguments in the words of the reader of a message: `seq_len=64` in Python, `--seq-len 64` in the shell.

Messages are written once, with `option`. The command line runs inside `shell_words`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

FLAGS = {
    "vocab_cover": "--vocab",
    "model_class": "--class",
    "folder": "--out",
    "loaded": "--against",
    "runtime": "--for",
}  # where they differ
NOT_GIVEN = object()
_readers = ["python"]  # a list, because threads that work for a command must speak as it does


@contextmanager
def shell_words() -> Iterator[None]:
    """Inside, arguments are named as flags."""
    _readers.append("shell")
    try:
        yield
    finally:
        _readers.pop()


def option(name: str, value: object = NOT_GIVEN) -> str:
    """An argument, with its value where one is given, as the reader would type it."""
    if _readers[-1] == "python":
        return f"{name}=…" if value is NOT_GIVEN else f"{name}={_python(value)}"
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    if value is False:
        return flag.replace("--", "--no-", 1)
    return flag if value is NOT_GIVEN or value is True else f"{flag} {_shell(value)}"


def _python(value: object) -> str:
    return repr(float(value) if isinstance(value, float) else value)


def _shell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).removeprefix("torch.")


def either(*names: str) -> str:
    """Several arguments to choose from: `macs=…, params=… or latency=…`."""
    *first, last = (option(name) for name in names)
    return f"{', '.join(first)} or {last}" if first else last

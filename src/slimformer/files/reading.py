"""Reading files whole: regular ones only, none larger than such a file can be, and ours field by field.

A device never ends and a pipe may never begin, so both are refused before a byte is read, and so is a file over its
limit. What the readers of other packages open by its path is looked at first with `require_regular`.

Files of our own are JSON without NaN, without a key that stands twice, and without text no terminal can print; their
fields are checked by pydantic, strictly: a number is not a text, a float is not a whole number.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from slimformer.errors import FileRefused

T = TypeVar("T")
SMALL = 64 << 20  # bytes of what people write or read: configs, plans, reports
LARGE = 2 << 30  # of what machines write for themselves: curves of wide models, vocabularies, lists of weights
YAML = 256 << 10  # of recipes and experiments, which people write
VALUES = 100_000  # in one of these
DATA = 32 << 30  # of a file of examples that is read whole
KINDS = {
    stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}  # fmt: skip


def require_regular(path: str | Path, most: int | None = None) -> None:
    """Refuse (`FileRefused`) what is no regular file, or one of more bytes; whether it is there is left to the reader.

    Cost: one look at its name.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return
    _require(path, status, most)


def require_regular_files(paths: Iterable[Path], most: int | None = None) -> None:
    """The same for many, of which folders are passed over."""
    for path in paths:
        if not path.is_dir():
            require_regular(path, most)


def read_bytes(path: str | Path, most: int = SMALL) -> bytes:
    """All bytes of a regular file that has no more than `most`."""
    # without waiting: opening a pipe would, until somebody writes to it
    place = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(place, "rb") as file:
        _require(path, os.fstat(file.fileno()), most)
        content = file.read(most + 1)  # a file may grow meanwhile, and those of /proc say that they are empty
    if len(content) > most:
        raise _too_large(path, most)
    return content


def read_text(path: str | Path, most: int = SMALL) -> str:
    """The same as UTF-8 text, whatever its lines end in."""
    return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: str | Path, most: int = SMALL) -> Any:
    """A JSON file of others. What is wrong with it is an OSError or a ValueError, however it is wrong."""
    try:
        return json.loads(read_text(path, most))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_own_json(path: str | Path, most: int = SMALL) -> Any:
    """A JSON file of ours, see `parse_own_json`."""
    return parse_own_json(read_text(path, most))


def parse_own_json(text: str) -> Any:
    """JSON as we write it; a ValueError where it is not."""
    try:
        content = json.loads(text, object_pairs_hook=_each_once, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text.lower():  # an escape may be half of a pair
        json.dumps(content, ensure_ascii=False).encode()
    return content


def parse_yaml(text: str) -> Any:
    """YAML, which somebody wrote by hand; a ValueError where it is not, or stands for values without end."""
    try:
        content = yaml.safe_load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    _require_few(content)
    return content


def checked(kind: type[T], fields: Any) -> T:
    """What JSON gave as a dataclass or container, every field of its type; a ValueError names the first that is not."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:80] for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


def one_of(*names: str) -> AfterValidator:
    """For a text that must be one of these names; the refusal lists them."""

    def known(name: str) -> str:
        if name not in names:
            raise PydanticCustomError("one_of", "{wanted}", {"wanted": f"should be {' or '.join(names)}"})
        return name

    return AfterValidator(known)


def _require_few(content: Any) -> None:
    """Refuse what aliases make endless: a few lines of them stand for more values than there is memory."""
    values, seen = [content], 0
    while values:
        value = values.pop()
        values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        seen += 1
        if seen > VALUES:
            raise ValueError(f"it holds more than {VALUES:,} values, counted through its aliases")


def _require(path: str | Path, status: os.stat_result, most: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for test, kind in KINDS.items() if test(status.st_mode)), "no file")
        raise FileRefused(path, f"it is {kind}, and only regular files are read")
    if most is not None and status.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | Path, most: int) -> FileRefused:
    size = f"{most >> 30} GiB" if most >= 1 << 30 else f"{most >> 20} MiB"
    return FileRefused(path, f"it is larger than {size}, the most that is read of such a file")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)[:80]!r} stands twice")
    return content


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is not JSON")

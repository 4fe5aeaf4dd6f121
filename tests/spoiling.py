"""Whatever a file holds, what is read of it is what was written, or it is refused in one of our errors.

A target has a good file, and a function that gives what it means from the folder it is in. A spoilt copy must be
refused, or mean the same; or, where a user may have written it so, what another reader says it means. Anything else is
misread. An error that is no `SlimformerError` would be a traceback to a user.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from slimformer.errors import SlimformerError

SECONDS = 10  # after which a reader counts as hung
LIST = "slimformer.json"  # by which a changed file of a folder is known
EQUAL, REFUSED, MISREAD = "equal", "refused", "misread"
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, -(2**70), 1e308, -0.5, float("nan"), float("inf"), "", "x",
    "../../etc/passwd", "\x00", "\ud800", "w" * 5000, [], {}, [[]], [1, "a"], {"a": {"b": []}}, [0] * 300,
)  # fmt: skip
ODD_BYTES = (b"\x00", b"\xff\xfe", b"\r", b'"', b"\n\n", b"&a [*a,*a]", b"{" * 2000, b"9" * 400)
DIGITS = b"0123456789"


@dataclass(frozen=True)
class Target:
    """A file by name, as it should be, and what tells its meaning."""

    name: str
    good: bytes
    read: Callable[[Path], object]  # given the folder it is in
    around: Path | None = None  # what lies beside it
    label: str = ""  # where a name says too little
    second: Callable[[Path], object] | None = None  # another reader, where any content may be meant
    fresh: bool = False  # do readers write into the folder?

    @property
    def unlisted(self) -> bool:
        """Is there nothing by which a change that makes sense could be known? So of files in a folder without a
        list."""
        return self.second is None and self.around is not None and not (self.around / LIST).is_file()


# --- spoiling ---------------------------------------------------------------------------------------------------


def spoilt(good: bytes, draw: random.Random, *, structured: bool) -> bytes:
    """A file with something wrong in it: another value, a bit or a digit turned, bytes lost, put in, doubled."""
    chance = draw.random()
    if structured and chance < 0.5:
        try:
            return json.dumps(_other_value(_parsed(good), draw)).encode("utf-8", "surrogatepass")
        except ValueError:
            pass
    if chance < 0.7 and good:
        return _turned(good, draw)
    data = bytearray(good)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = draw.randbytes(draw.randint(1, 20))
            case 2:
                data[at : at + 1] = draw.randbytes(1)
            case 3:
                data[at:at] = data[at : at + draw.randint(1, 200)]
            case 4:
                del data[at : at + draw.randint(1, 50)]
            case _:
                data[at:at] = draw.choice(ODD_BYTES)
    return bytes(data)


def _turned(good: bytes, draw: random.Random) -> bytes:
    """One bit, or one digit, another: what most often still makes sense."""
    data = bytearray(good)
    digits = [i for i, byte in enumerate(data[:100_000]) if byte in DIGITS]
    if digits and draw.random() < 0.5:
        data[draw.choice(digits)] = draw.choice(DIGITS)
    else:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


@functools.cache
def _parsed(good: bytes) -> Any:
    """JSON or YAML; what it holds is copied before it is changed."""
    try:
        return json.loads(good)
    except ValueError:
        return yaml.safe_load(good)


def _other_value(value: Any, draw: random.Random) -> Any:
    """The same with one part of it replaced, removed or doubled."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return draw.choice(ODD)
    for _ in range(draw.randint(1, 2)):
        holder, key = draw.choice(places)
        try:
            match draw.randrange(4):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, list):
                    holder.append(holder[key])
                case 2 if isinstance(holder, dict):
                    holder[draw.choice(["x", "", key + "s"])] = holder[key]
                case _:
                    holder[key] = copy.deepcopy(draw.choice(ODD))
        except (KeyError, IndexError):
            continue
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


# --- trying -----------------------------------------------------------------------------------------------------


class Hung(BaseException):
    """A reader took far too long; not an `Exception`, so that nothing below swallows it."""


def attempt(target: Target, draw: random.Random, folder: Path) -> str:
    """Read a spoilt file, and say how that went. Any error that is not ours goes up.

    The folder is used again for the same target, because copying it is what takes time.
    """
    place = _furnished(target, folder)
    structured = target.name.endswith((".json", ".yaml"))
    (place / target.name).write_bytes(spoilt(target.good, draw, structured=structured))
    try:
        with _in_time():
            found = target.read(place)
    except SlimformerError as error:
        assert str(error).strip() and "\n" not in str(error), f"not one line: {error!r}"
        return REFUSED
    finally:
        if target.fresh:
            shutil.rmtree(place)
    return EQUAL if same(found, _meant(target, place)) else MISREAD


def _furnished(target: Target, folder: Path) -> Path:
    """A folder for this target alone, with what lies beside its file."""
    place = folder / (target.label or target.name).replace("/", " ")
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(target.around, place) if target.around else place.mkdir()
    return place


def _meant(target: Target, place: Path) -> object:
    if target.second is None:
        return meaning(target, place)
    try:
        return target.second(place)
    except Exception as error:  # what another reader cannot read, ours should not
        return error


_meanings: dict[tuple[str, bytes], object] = {}


def meaning(target: Target, place: Path) -> object:
    """What the good file says."""
    key = (str(place), target.good)
    if key not in _meanings:
        other = place.with_name(f"{place.name} as it was")
        shutil.copytree(target.around, other) if target.around else other.mkdir(parents=True)
        (other / target.name).write_bytes(target.good)
        _meanings[key] = target.read(other)
        shutil.rmtree(other)
    return _meanings[key]


@contextmanager
def _in_time() -> Iterator[None]:
    def ring(_number: int, _frame: object) -> None:
        raise Hung(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- comparing --------------------------------------------------------------------------------------------------


def same(one: Any, two: Any) -> bool:
    """Equal to the last bit, tensors and NaN among them; a whole number equals a fraction, but no truth value."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        kinds = (one.dtype, one.shape) == (two.dtype, two.shape)
        return kinds and torch.equal(_bits(one), _bits(two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(value, two[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, float) and isinstance(two, float) and one != one:
        return two != two
    return type(one) in _alike(two) and bool(one == two)


def _alike(value: Any) -> tuple[type, ...]:
    return (int, float) if isinstance(value, int | float) else (type(value),)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)

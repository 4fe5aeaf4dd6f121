"""What arguments of public functions may be, in one table, by the names all of them share.

`check_arguments` looks at the arguments of a call before anything is done. What is of the wrong kind is one line
(`WrongArgument`) that says what to give; what only a model or its data can tell is checked later.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar, overload

from slimformer.errors import WrongArgument
from slimformer.messages.progress import shown
from slimformer.messages.words import option

P = ParamSpec("P")
R = TypeVar("R")
SHOWN = 60  # characters of a value that are repeated in a message


@dataclass(frozen=True)
class Kind:
    """What is wanted, in words, and the test for it."""

    wanted: str
    accepts: Callable[[Any], bool]
    optional: bool = False  # may it be None? A parameter whose default is None always may


def whole(least: int, *, optional: bool = False) -> Kind:
    """A whole number of at least that."""
    return Kind(f"a whole number from {least}", lambda x: _is(x, Integral) and x >= least, optional)


def instance(wanted: str, *classes: Any) -> Kind:
    """An object of one of these classes."""
    return Kind(wanted, lambda x: isinstance(x, classes))


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and "\0" not in str(value)


def _is_data(value: Any) -> bool:
    """A name or path, token ids, or several items; what they are is seen when they are read."""
    return _is_path(value) or (isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_model(value: Any) -> bool:
    from transformers import PreTrainedModel  # a name or path is told without it

    return isinstance(value, PreTrainedModel)


def _is_device(value: Any) -> bool:
    import torch

    return isinstance(value, str | torch.device)


def _is_precision(value: Any) -> bool:
    import torch

    return isinstance(value, torch.dtype)


def _is_vocabulary(value: Any) -> bool:
    return (_is(value, int) and value >= 1) or (isinstance(value, float) and 0 < value < 1)


def _are_numbers(value: Any) -> bool:
    return _is_list(value) and len(value) == 2 and all(_is(each, Real) for each in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, str) or (_is_list(value) and all(isinstance(name, str) for name in value))


FRACTION = Kind("a number", lambda x: _is(x, Real))  # which one, is said better by who knows of what
NUMBER = Kind("a number", lambda x: _is(x, Real) and not math.isnan(x))
AT_LEAST_0 = Kind("a number from 0", lambda x: NUMBER.accepts(x) and x >= 0)
TEXT = instance("text", str)
YES_OR_NO = instance("True or False", bool)
CALLABLE = Kind("a function", callable)
PATH = Kind("the name of a file or folder", _is_path)
DATA = Kind(
    "something to read: a file, a data set's name, builtin, a list of texts, token ids or a folder of images", _is_data
)
ANYTHING = Kind("anything", lambda _: True, optional=True)
PROCESSOR = Kind(
    "a tokenizer or image processor of transformers",
    lambda x: callable(x) and hasattr(x, "save_pretrained"),
    optional=True,
)
IN_MEMORY = Kind("a model of transformers (a PreTrainedModel)", _is_model)
ON_DISK = Kind("a folder, a hub id or demo:smollm2", _is_path)
MODEL = Kind(
    f"{ON_DISK.wanted}, nor {IN_MEMORY.wanted}", lambda x: ON_DISK.accepts(x) or IN_MEMORY.accepts(x)
)  # fmt: skip

KINDS: dict[str, Kind] = {
    "model": MODEL, "data": DATA, "folder": PATH, "processor": PROCESSOR,
    "macs": FRACTION, "params": FRACTION, "latency": FRACTION, "total_macs": FRACTION, "max_kl": NUMBER,
    "size": whole(1), "memory": whole(1),
    "tokens": whole(1, optional=True), "samples": whole(1, optional=True), "seq_len": whole(2, optional=True),
    "seed": whole(0), "heal": NUMBER,
    "columns": Kind("a list of names", _are_names, optional=True),
    "eval_data": Kind("a list of data", _is_list), "head_data": PATH,
    "vocab": Kind("a number of tokens, nor a share of the text between 0 and 1", _is_vocabulary), "vocab_data": PATH,
    "settings": instance("a dictionary of settings by step.key", dict),
    "format": TEXT, "refine": YES_OR_NO, "timing": YES_OR_NO, "force": YES_OR_NO, "verify": YES_OR_NO,
    "only_data": YES_OR_NO,
    "bits": whole(1), "group": whole(0, optional=True), "tables": YES_OR_NO, "method": TEXT,
    "symmetric": YES_OR_NO, "pattern": TEXT,
    "k": whole(1), "kind": TEXT, "window": whole(0), "keep_exact": whole(0), "steps": whole(1),
    "budgets": Kind("two numbers, the small one first", _are_numbers), "tolerance": AT_LEAST_0, "mean_macs": NUMBER,
    "device": Kind("the name of a device, e.g. 'cpu'", _is_device),
    "dtype": Kind("a precision of torch, e.g. torch.float32", lambda x: _is_precision(x) and x.is_floating_point,
                  optional=True),
    "revision": Kind("a branch, a tag or a commit", lambda x: isinstance(x, str) and bool(x.strip()), optional=True),
    "trust_remote_code": YES_OR_NO,
    "family": replace(PATH, optional=True),
    "model_class": Kind("the name of a class", lambda x: isinstance(x, str) and bool(x.strip()), optional=True),
    "progress": Kind("True, False or a function", lambda x: isinstance(x, bool) or callable(x)),
    "runtime": TEXT,
    "say": CALLABLE, "report": instance("a dictionary", dict),
}  # fmt: skip
LEFT_OPEN = (  # None leaves these to the recipe
    "macs", "params", "latency", "total_macs", "max_kl", "size", "bits", "group", "tables", "refine", "heal",
    "head_data", "k", "kind", "window", "keep_exact", "steps", "eval_data", "vocab", "vocab_data", "runtime",
)  # fmt: skip
KINDS |= {name: replace(KINDS[name], optional=True) for name in LEFT_OPEN}


@overload
def check_arguments(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def check_arguments(**own: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def check_arguments(function: Any = None, /, **own: Kind) -> Any:
    """Check the arguments of every call; `own` are kinds that only this function has, or has otherwise.

    A function that takes `progress` takes True and False as well: here they become what it calls.
    """
    if function is None:
        return lambda wrapped: _checking(wrapped, {**KINDS, **own})
    return _checking(function, KINDS)


def _checking(function: Callable[..., R], kinds: Mapping[str, Kind]) -> Callable[..., R]:
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD]
    rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    by_name = {p.name: kinds[p.name] for p in named}  # a parameter of no kind is a mistake of ours: found at import
    free = {p.name for p in named if p.default is None}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        given = dict(signature.bind(*args, **kwargs).arguments)
        others = given.pop(rest, {}) if rest else {}
        for name in others:
            if name not in kinds:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        for name, value in {**given, **others}.items():
            if name != "self" and not (value is None and name in free):
                _require(name, value, by_name.get(name, kinds.get(name, ANYTHING)))
        if not isinstance(given.get("progress"), bool):
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        with shown(given["progress"]) as progress:
            bound.arguments["progress"] = progress
            return function(*bound.args, **bound.kwargs)

    return call


def _require(name: str, value: Any, kind: Kind) -> None:
    if (value is None and kind.optional) or (value is not None and kind.accepts(value)):
        return
    if value is None or isinstance(value, str | Real | os.PathLike) or _is_precision(value):
        shown = option(name, value if len(str(value)) <= SHOWN else f"{str(value)[:SHOWN]}…")
    else:
        shown = f"{option(name)} is a {type(value).__name__}, which"
    number = _number(value)
    meant = f"; give {option(name, number)}" if number is not None and kind.accepts(number) else ""
    raise WrongArgument(" ".join(f"{shown} is not {kind.wanted}{meant}".split()))


def _number(value: Any) -> float | None:
    """The number that a text, or a number of another kind, most likely stands for."""
    if isinstance(value, bool) or not isinstance(value, str | Real):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and number == int(number) else number

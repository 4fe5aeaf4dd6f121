"""How a model is opened: on which device, in which precision, and what of a stranger's folder is believed."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, TypedDict

import torch

from slimformer.errors import WrongArgument
from slimformer.messages.notes import OpeningNote as OpeningNote
from slimformer.messages.words import option


@dataclass(frozen=True)
class Opening:
    """How to open a model. `revision` and `trust_remote_code` are for the hub (SECURITY.md says what they mean),
    `model_class` names a class of transformers, or an Auto class, in place of the one config.json names; `family` is a
    file that says where models of its type keep their widths (docs/adding-a-family.md)."""

    device: str | torch.device = "auto"
    dtype: torch.dtype | None = torch.float32  # none: as it is stored
    revision: str | None = None
    trust_remote_code: bool = False
    model_class: str | None = None
    family: str | Path | None = None


class OpeningOptions(TypedDict, total=False):
    """The fields of `Opening`, as functions take them by name."""

    device: str | torch.device
    dtype: torch.dtype | None
    revision: str | None
    trust_remote_code: bool
    model_class: str | None
    family: str | Path | None


OPTIONS = tuple(field.name for field in fields(Opening))
AS_USUAL = Opening()


def opening_in(given: dict[str, Any], usual: Opening = AS_USUAL) -> Opening:
    """How to open a model, taken out of arguments given by name."""
    return replace(usual, **{name: given.pop(name) for name in OPTIONS if name in given})


def say(notes: list[str]) -> None:
    """Let notes on how a model was opened be seen, from Python as warnings."""
    for note in notes:
        warnings.warn(note, OpeningNote, stacklevel=3)


def usable_device(device: str | torch.device) -> str:
    """A device that is here; for `auto` a graphics card, Apple's chip where it can do what is needed, else the CPU."""
    name = str(device)
    if name == "auto":
        name = next((name for name in _accelerators() if _reason_against(name, torch.float64) is None), "cpu")
    if name == "cuda" and "LOCAL_RANK" in os.environ:  # under torchrun every process has a card of its own
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    reason = _reason_against(name, torch.float32)
    if reason is not None:
        here = [name for name in ("cpu", *_accelerators()) if _reason_against(name, torch.float32) is None]
        raise WrongArgument(
            f"{option('device', name)} cannot be used here ({reason}); here {'is' if len(here) == 1 else 'are'} "
            f"{', '.join(here)}, or leave it out"
        )
    return name


def _accelerators() -> list[str]:
    """The usual ones, and the one torch was built for or was given by an extension."""
    own = torch.accelerator.current_accelerator()
    return list(dict.fromkeys(["cuda", "mps", *([] if own is None else [own.type])]))


def _reason_against(name: str, dtype: torch.dtype) -> str | None:
    """Why tensors cannot live there; none where they can. MPS, for one, has no double precision."""
    try:
        torch.empty(1, device=name, dtype=dtype).cpu()  # meta tensors can be made, but hold nothing
    except (RuntimeError, AssertionError, TypeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return shorten(first.partition(". ")[0], 100, placeholder=" …")
    return None


def usable_precision(dtype: torch.dtype, device: str | torch.device) -> torch.dtype:
    """The precision to run a model in. Half precision on a CPU is slow at best and crashes some: it is refused."""
    if dtype.itemsize == 2 and torch.device(usable_device(device)).type == "cpu":
        raise WrongArgument(
            f"{option('dtype', dtype)} is for accelerators; on a CPU calibrate in float32 (the result is stored in the "
            "precision of the original all the same)"
        )
    return dtype


def opening_facts(opening: Opening, commit: str | None) -> dict[str, Any]:
    """What a report says of it: what was asked for beyond the usual, and the commit the hub gave."""
    said = {"revision": opening.revision, "commit": commit, "model_class": opening.model_class}
    facts: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    facts |= {} if opening.family is None else {"family": str(opening.family)}
    return {**facts, "trust_remote_code": True} if opening.trust_remote_code else facts

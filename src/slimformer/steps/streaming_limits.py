"""What is not possible block by block, refused before a model is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.messages.words import either, option
from slimformer.models.opening import Opening

STREAMED = ("cut", "refine")
NEED_ALL = (
    "eval_data", "head_data", "vocab", "vocab_data", "bits", "group", "tables", "heal", "k", "kind", "window",
    "keep_exact", "steps",
)  # fmt: skip


def on_the_cpu(opening: Opening) -> Opening:
    """How to open what is walked block by block: on the CPU, in a precision it is good at; refused otherwise."""
    if str(opening.device) not in ("auto", "cpu"):
        raise UnknownMethod(
            f"{option('memory')} is for the CPU; {option('device', str(opening.device))} holds the whole model; leave "
            "one of them out"
        )
    if opening.dtype not in (torch.float32, torch.float64):
        raise UnknownMethod(
            f"{option('dtype', opening.dtype)} is for accelerators; block by block work in float32 (the result is "
            "stored in the precision of the original all the same)"
        )
    return replace(opening, device="cpu")


def require_streamable(recipe: str, steps: Sequence[str]) -> None:
    """Refuse a recipe with a step that needs the whole model."""
    if others := [step for step in steps if step not in STREAMED]:
        raise UnknownMethod(
            f"the recipe {recipe!r} cannot be followed block by block: {', '.join(others)} needs the whole model; use "
            f"one that only cuts, or leave {option('memory')} out"
        )


def require_streaming_possible(arguments: dict[str, Any]) -> None:
    """Refuse what is not possible block by block."""
    if not {"macs", "params"} & arguments.keys():
        raise BudgetOutOfReach(
            f"with {option('memory')} give {either('macs', 'params')}; other budgets need the whole model"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UnknownMethod(f"{option('memory')} is for one process; leave it or torchrun out")
    if given := [name for name in NEED_ALL if arguments.get(name)]:
        raise UnknownMethod(f"{option(given[0])} needs the whole model; leave it or {option('memory')} out")

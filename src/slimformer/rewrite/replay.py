"""Parts of a block that were run and need not be again: only their readers are, on what they were given before.

A block that is corrected part by part is run once for each of its parts and once to go on. What comes before a reader
(projections, angles, attention) gives the same every time, so what the reader was given is kept, and the module that
wrote it answers with that; where the reader is inside that module, with what the reader now makes of it. A part is only
replayed where the module was seen to hand on exactly this, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import Tensor, nn

from slimformer.models import Site
from slimformer.models.hooks import answering


@dataclass(frozen=True)
class Replay:
    """A module, the reader inside it ("" where it is outside), what this was given, and what else the module gives."""

    module: str
    reader: str
    given: Tensor
    rest: tuple[None, ...] | None  # none where the module gives a tensor alone


def module_of(site: Site) -> str:
    """The innermost module that holds all writers of a site; "" where that is the block itself."""
    levels = zip(*(writer.module.split(".")[:-1] for writer in site.writers), strict=False)
    found = ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))
    return found if found.startswith(f"{site.root}.") else ""


def is_inside(module: str, reader: str) -> bool:
    """Is the reader a part of the module that holds its writers?"""
    return bool(module) and reader.startswith(f"{module}.")


def replay_of(site: Site, given: Tensor, added: Tensor, output: Any) -> Replay | None:
    """How to replay a part whose reader was `given` that, `added` this and whose module gave this output; None where it
    gave anything else."""
    first, *rest = output if isinstance(output, tuple) else (output,)
    inside = is_inside(module_of(site), site.reader)
    if not _same(first, added if inside else given) or any(each is not None for each in rest):
        return None
    reader = site.reader if inside else ""
    return Replay(module_of(site), reader, given, tuple(rest) if isinstance(output, tuple) else None)


@contextmanager
def replaying(model: nn.Module, replays: Sequence[Replay]) -> Iterator[None]:
    """Let the modules of these parts answer without running."""
    of = {id(model.get_submodule(each.module)): each for each in replays}

    def answer(module: nn.Module) -> Callable[..., Any]:
        replay = of[id(module)]

        def forward(*_args: Any, **_kwargs: Any) -> Any:
            found = model.get_submodule(replay.reader)(replay.given) if replay.reader else replay.given
            return found if replay.rest is None else (found, *replay.rest)

        return forward

    with answering([model.get_submodule(each.module) for each in replays], answer):
        yield


def _same(a: Any, b: Tensor) -> bool:
    return isinstance(a, Tensor) and a.shape == b.shape and a.data_ptr() == b.data_ptr() and a.stride() == b.stride()

"""What every linear layer of a block reads, after everything before it has been changed already.

The model is walked block by block, and inside a block reading by reading: layers that are given the same tensor (q, k
and v; gate and up) share one Gram matrix and are changed together, then the block is run again for the next. So every
layer is fitted on what really reaches it. Which layers share is seen, not looked up: it holds for every family, and
for the paths and ranks of models that were cut before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from slimformer.calibrate.text import Batch
from slimformer.errors import NotFinite
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture
from slimformer.models.hooks import Hook, listening
from slimformer.models.walk import Stream, Visit, forward, real_rows, rehearse

Change = Callable[[str, Moments], None]  # the name of a layer and the moments of its input: change its weight in place


class _Seen(Exception):
    """Raised once an input has been seen: what follows in the block need not run."""


@torch.no_grad()
def change_in_turn(
    model: PreTrainedModel,
    architecture: Architecture,
    batches: Sequence[Batch],
    change: Change,
    *,
    progress: Callable[[int], None] = lambda _block: None,
) -> None:
    """Hand every linear layer of the blocks, in the order of the forward pass, to `change`.

    Cost: about three forward passes through the blocks and n d² / 2 operations for every width d; memory tokens ×
    hidden size and one Gram matrix.
    """
    model.eval()
    streams = list(rehearse(model, architecture, batches))
    for visit in forward(model, architecture):
        for names in readings(visit, streams[0]):
            moments = _moments(visit, names[0], streams)
            for name in names:
                change(name, moments)
        for stream in streams:
            visit.advance(stream)
        progress(visit.i)


def linear_layers(model: PreTrainedModel, architecture: Architecture, i: int) -> list[str]:
    """The names of all linear maps inside block i. Those outside blocks (embeddings, heads) are left alone.

    Cut models may hold maps without a weight: the queries of a block that kept no scores, say. They are no layers.
    """
    path = architecture.blocks[i].path
    modules = model.get_submodule(path).named_modules()
    return [
        f"{path}.{name}"
        for name, module in modules
        if isinstance(module, nn.Linear | Conv1D) and module.weight.numel() > 0
    ]


@torch.no_grad()
def readings(visit: Visit, stream: Stream) -> list[tuple[str, ...]]:
    """Layers of a block that read the same tensor, in the order they run; seen on one batch."""
    inputs: list[tuple[Tensor, list[str]]] = []

    def hook(name: str) -> Hook:
        def note(X: Tensor) -> None:
            if any(name in names for _, names in inputs):  # a block that is run again
                return None
            for seen, names in inputs:
                if seen is X:
                    return names.append(name)
            return inputs.append((X, [name]))

        return note

    hooks = {name: hook(name) for name in linear_layers(visit.model, visit.architecture, visit.i)}
    with listening(visit.model, inputs=hooks):
        visit.run(stream)
    return [tuple(names) for _, names in inputs]


def _moments(visit: Visit, name: str, streams: Sequence[Stream]) -> Moments:
    total: list[Moments] = []
    for stream in streams:
        for X in _input_of(visit, name, stream):
            new = Moments.of(real_rows(X, stream.rows))
            total[:] = [total[0] + new] if total else [new]
    if not bool(torch.isfinite(total[0].gram.diagonal()).all()):
        raise NotFinite(f"{name}: NaN or infinite activations during calibration; check the weights")
    return total[0]


def _input_of(visit: Visit, name: str, stream: Stream) -> list[Tensor]:
    seen: list[Tensor] = []

    def hook(X: Tensor) -> None:
        seen.append(X)
        if len(seen) == visit.here.runs:
            raise _Seen

    with suppress(_Seen), listening(visit.model, inputs={name: hook}):
        visit.run(stream)
    return seen

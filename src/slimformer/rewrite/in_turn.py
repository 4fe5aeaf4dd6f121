"""What every linear layer of a block reads, after everything before it has been changed already.

The model is walked block by block, and inside a block reading by reading: layers that are given the same tensor (q, k
and v; gate and up) share one Gram matrix and are changed together, then the block is run again for the next. So every
layer is fitted on what really reaches it. Which layers share is heard, not looked up: it holds for every family, and
for the paths and ranks of models that were cut before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from slimformer.calibrate.collect import Stage, listening, real_rows, rehearse, through
from slimformer.calibrate.text import Batch
from slimformer.errors import NotFinite
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture

Change = Callable[[str, Moments], None]  # the name of a layer and the moments of its input: change its weight in place


class _Heard(Exception):
    """Raised once an input has been heard: what follows in the block need not run."""


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
    stages = list(rehearse(model, architecture, batches))
    for i, block in enumerate(model.get_submodule(architecture.blocks).children()):
        for names in readings(model, architecture, i, stages[0]):
            moments = _moments(model, block, i, names[0], stages)
            for name in names:
                change(name, moments)
        for stage in stages:
            stage.state = through(block, stage.state, stage.calls[i])
        progress(i)


def linear_layers(model: PreTrainedModel, architecture: Architecture, i: int) -> list[str]:
    """The names of all linear maps inside block i. Those outside blocks (embeddings, heads) are left alone.

    Cut models may hold maps without a weight: the queries of a block that kept no scores, say. They are no layers.
    """
    path = f"{architecture.blocks}.{i}"
    found = model.get_submodule(path).named_modules()
    return [
        f"{path}.{name}"
        for name, module in found
        if isinstance(module, nn.Linear | Conv1D) and module.weight.numel() > 0
    ]


@torch.no_grad()
def readings(model: PreTrainedModel, architecture: Architecture, i: int, stage: Stage) -> list[tuple[str, ...]]:
    """Layers of block i that read the same tensor, in the order they run; heard on one batch."""
    heard: list[tuple[Tensor, list[str]]] = []

    def ear(name: str) -> Callable[[Tensor], None]:
        def hear(X: Tensor) -> None:
            for seen, names in heard:
                if seen is X:
                    return names.append(name)
            heard.append((X, [name]))

        return hear

    ears = {name: ear(name) for name in linear_layers(model, architecture, i)}
    with listening(model, inputs=ears):
        through(model.get_submodule(f"{architecture.blocks}.{i}"), stage.state, stage.calls[i])
    return [tuple(names) for _, names in heard]


def _moments(model: PreTrainedModel, block: nn.Module, i: int, name: str, stages: Sequence[Stage]) -> Moments:
    total: list[Moments] = []
    for stage in stages:
        for X in _input_of(model, block, i, name, stage):
            new = Moments.of(real_rows(X, stage.rows))
            total[:] = [total[0] + new] if total else [new]
    if not bool(torch.isfinite(total[0].gram.diagonal()).all()):
        raise NotFinite(f"{name}: NaN or infinite activations during calibration; check the weights")
    return total[0]


def _input_of(model: PreTrainedModel, block: nn.Module, i: int, name: str, stage: Stage) -> Iterator[Tensor]:
    heard: list[Tensor] = []

    def ear(X: Tensor) -> None:
        heard.append(X)
        raise _Heard

    with suppress(_Heard), listening(model, inputs={name: ear}):
        through(block, stage.state, stage.calls[i])
    yield from heard

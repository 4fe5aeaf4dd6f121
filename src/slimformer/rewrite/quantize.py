"""A copy of a model whose linear layers are on a grid, or mostly zero.

Linear layers inside blocks are touched and, where asked for, the tables at both ends: embeddings, and the head that
gives a word for every row. Classifiers, norms and biases stay (but a bias takes up the mean of what rounding does to
its layer's output).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.decompose.compensation import gram_error
from slimformer.decompose.rounding import Grid, Rounded, round_compensated, round_nearest
from slimformer.decompose.sparse import Pattern, make_sparse
from slimformer.errors import UnknownMethod
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture, describe
from slimformer.models.architecture import has_bias, weight_of
from slimformer.rewrite.in_turn import change_in_turn, linear_layers
from slimformer.rewrite.surgery import nudge, write

Method = Literal["gptq", "nearest"]
METHODS: tuple[Method, ...] = ("gptq", "nearest")
Heard = Callable[[int], None]
FEW_ROWS = 256  # tables with fewer (kinds of segments, distances between positions) save nothing and may be delicate


@dataclass(frozen=True)
class Quantized:
    """A model that computes with rounded weights, and those weights as they are stored."""

    model: PreTrainedModel = field(repr=False)
    layers: Mapping[str, Rounded] = field(repr=False)
    errors: Mapping[str, float] = field(
        default_factory=dict, repr=False
    )  # of outputs, relative to their energy; on fitted data


@dataclass(frozen=True)
class Sparse:
    """A model with zeros in its linear layers."""

    model: PreTrainedModel
    zeros: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of all weights of these layers together, how many are zero."""
        sizes = {name: weight_of(self.model.get_submodule(name)).numel() for name in self.zeros}
        return sum(self.zeros[name] * size for name, size in sizes.items()) / max(1, sum(sizes.values()))


def quantized(
    model: PreTrainedModel,
    grid: Grid,
    batches: Sequence[Batch] = (),
    *,
    method: Method = "gptq",
    tables: bool = False,
    progress: Heard = lambda _block: None,
) -> Quantized:
    """A copy with all linear layers of its blocks on the grid; `batches` are for "gptq", "nearest" reads nothing.

    With `tables` those at both ends are on it, too, to the nearest: every token reads a row of its own, so no row can
    make up for another. All layers then have steps for equally many weights (`grid_with_tables`).
    """
    if method not in METHODS:
        raise UnknownMethod(f"there is no way of rounding {method!r}; choose from {', '.join(METHODS)}")
    out, architecture = copy.deepcopy(model), describe(model)
    grid = grid_with_tables(model, grid) if tables else grid
    layers: dict[str, Rounded] = {}
    errors: dict[str, float] = {}

    def change(name: str, moments: Moments) -> None:
        layer = out.get_submodule(name)
        W, C = weight_of(layer).cpu(), moments.second(centred=has_bias(layer))
        layers[name] = round_compensated(W, C, grid, by_energy=True)
        errors[name] = _exchange(layer, W, layers[name].W, C, moments)

    if method == "gptq":
        change_in_turn(out, architecture, batches, change, progress=progress)
    else:
        _each(out, architecture, lambda name: _to_nearest(out, name, grid, layers), progress)
    if tables:
        for name in tables_of(out):
            table = weight_of(out.get_submodule(name))
            layers[name] = round_nearest(table.cpu(), grid)
            table.copy_(layers[name].W)  # in place: a head may share it
    return Quantized(out, layers, errors)


def tables_of(model: PreTrainedModel) -> list[str]:
    """The tables at both ends: what tokens and positions are looked up in, and the head of words unless it is tied."""
    blocks = tuple(f"{block.path}." for block in describe(model).blocks)
    outside = {name: module for name, module in model.named_modules() if not name.startswith(blocks)}
    tables = {
        name: module.weight
        for name, module in outside.items()
        if isinstance(module, nn.Embedding) and module.num_embeddings >= FEW_ROWS
    }
    head = model.get_output_embeddings()
    tied = any(getattr(head, "weight", None) is each for each in tables.values())
    heads = [name for name, module in outside.items() if module is head and isinstance(module, nn.Linear)]
    return [*tables, *(() if tied else heads)]


def grid_with_tables(model: PreTrainedModel, grid: Grid) -> Grid:
    """The grid of all layers where tables are rounded, too: what reads such a file takes one width of groups for all of
    them (`checkpoint.pack`), so it is one that divides every row; where none does, steps are of whole rows."""
    architecture = describe(model)
    names = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    return grid.shared(weight_of(model.get_submodule(name)).shape[1] for name in [*names, *tables_of(model)])


def sparsified(
    model: PreTrainedModel,
    pattern: Pattern,
    batches: Sequence[Batch] = (),
    *,
    method: Literal["sparsegpt", "magnitude"] = "sparsegpt",
    progress: Heard = lambda _block: None,
) -> Sparse:
    """A copy with zeros in all linear layers of its blocks; "magnitude" takes the smallest and reads nothing."""
    out, architecture = copy.deepcopy(model), describe(model)
    zeros: dict[str, float] = {}
    errors: dict[str, float] = {}

    def change(name: str, moments: Moments) -> None:
        layer = out.get_submodule(name)
        W, C = weight_of(layer).cpu(), moments.second(centred=has_bias(layer))
        sparse = make_sparse(W, C, pattern)
        errors[name] = _exchange(layer, W, sparse, C, moments)
        zeros[name] = int((sparse == 0).sum()) / sparse.numel()

    def smallest(name: str) -> None:
        W = weight_of(out.get_submodule(name))
        sparse = W.masked_fill(pattern.choose(W.square()), 0.0)
        write(out.get_submodule(name), sparse, None)
        zeros[name] = int((sparse == 0).sum()) / sparse.numel()

    if method == "sparsegpt":
        change_in_turn(out, architecture, batches, change, progress=progress)
    elif method == "magnitude":
        _each(out, architecture, smallest, progress)
    else:
        raise UnknownMethod(f"there is no way to sparsity {method!r}; choose from sparsegpt, magnitude")
    return Sparse(out, zeros, errors)


def _each(model: PreTrainedModel, architecture: Architecture, change: Callable[[str], None], progress: Heard) -> None:
    for i in range(architecture.n_blocks):
        for name in linear_layers(model, architecture, i):
            change(name)
        progress(i)


def _to_nearest(model: PreTrainedModel, name: str, grid: Grid, layers: dict[str, Rounded]) -> None:
    layer = model.get_submodule(name)
    layers[name] = round_nearest(weight_of(layer).cpu(), grid)
    write(layer, layers[name].W, None)


@torch.no_grad()
def _exchange(layer: nn.Module, W: Tensor, new: Tensor, C: Tensor, moments: Moments) -> float:
    """Give a layer its new weight, let a bias take up the mean error, and say what is left of the outputs' energy."""
    error, energy = gram_error(W, new, C), gram_error(W, torch.zeros_like(W), C)
    if has_bias(layer):
        nudge(layer, torch.zeros_like(W, dtype=torch.float64), (W.double() - new.double()) @ moments.mean)
    write(layer, new, None)
    return error / energy if energy > 0 else 0.0

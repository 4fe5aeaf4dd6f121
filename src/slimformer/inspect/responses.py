"""How the inside of a block hangs together, seen by changing it: which columns a row of a matrix reaches.

A block is run with the arguments its model gave it, once as it is and once for every row that is changed. What a row
reaches first, in the order in which the matrices run, is who reads it. No name is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from slimformer.errors import UnknownArchitecture
from slimformer.messages.words import option
from slimformer.models.architecture import out_in, weight_of
from slimformer.models.sample_inputs import seen_or_heard, vocabulary_size, with_others

ROWS = 10  # rows of a matrix that are changed, spread evenly
TOKENS = (2, 9)  # sequences and their length
SILENT = 1e-9  # of the largest change: what is smaller is none; computed in double precision


@dataclass(frozen=True)
class Call:
    """How a block was called, and what it gave."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def stream(self) -> Tensor:
        """The stream after the block."""
        return self.output[0] if isinstance(self.output, tuple | list) else self.output


@dataclass(frozen=True)
class Reach:
    """What a row of a matrix reaches first: the matrix that reads it, and which columns of its input change."""

    row: int
    reader: str
    columns: tuple[int, ...]


def probe_inputs(model: PreTrainedModel, seed: int = 0) -> dict[str, Tensor]:
    """Random tokens, images or sounds, as the model names its main input; refused where it is something else."""
    generator = torch.Generator().manual_seed(seed)
    name = model.main_input_name
    if name == "input_ids":
        size = vocabulary_size(model.config)
        ids = {"input_ids": torch.randint(min(5, size // 2), size, TOKENS, generator=generator)}
        return with_others(model, ids, generator, TOKENS[1] - 2)
    if inputs := seen_or_heard(model, *TOKENS, generator):
        return with_others(model, inputs, generator, TOKENS[1] - 2)
    raise UnknownArchitecture(
        f"models that read {name!r} cannot be looked into; give a family file with {option('family')}"
    )


@contextmanager
def eager_experts(model: PreTrainedModel) -> Iterator[None]:
    """Experts one after the other: what multiplies all of them at once knows no double precision."""
    config: Any = model.config
    before = getattr(config, "_experts_implementation", None)
    config._experts_implementation = "eager"
    try:
        yield
    finally:
        config._experts_implementation = before


def run(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Any:
    """A forward pass that keeps nothing for later ones."""
    options = {"use_cache": False} if getattr(model.config, "use_cache", None) is not None else {}
    precision = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    here = {name: x.to(model.device, precision if x.is_floating_point() else None) for name, x in inputs.items()}
    return model.base_model(**here, **options)


@torch.no_grad()
def calls_of(model: PreTrainedModel, inputs: dict[str, Tensor], paths: list[str]) -> dict[str, list[Call]]:
    """How the modules named are called in one forward pass."""
    calls: dict[str, list[Call]] = {path: [] for path in paths}

    def note(path: str) -> Any:
        return lambda _module, args, kwargs, output: calls[path].append(Call(args, kwargs, output))

    handles = [model.get_submodule(path).register_forward_hook(note(path), with_kwargs=True) for path in paths]
    try:
        run(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


class Bench:
    """A copy of one block in double precision, to be changed and run."""

    def __init__(self, block: nn.Module, call: Call) -> None:
        self.block = deepcopy(block).double().eval()
        self.args, self.kwargs = _double(call.args), _double(call.kwargs)
        self.matrices: dict[str, nn.Module] = {
            name: module for name, module in self.block.named_modules() if isinstance(module, nn.Linear | Conv1D)
        }
        self.order: list[str] = []
        self.inputs: dict[str, Tensor] = {}
        self.stream = self.run()
        self.as_it_is = dict(self.inputs)

    @torch.no_grad()
    def run(self) -> Tensor:
        """The stream after the block; `inputs` are then those of its matrices."""
        self.inputs, self.order = {}, []

        def note(name: str) -> Any:
            def hook(_module: nn.Module, args: Any) -> None:
                self.inputs[name] = args[0]
                self.order.append(name)

            return hook

        handles = [module.register_forward_pre_hook(note(name)) for name, module in self.matrices.items()]
        try:
            output = self.block(*self.args, **self.kwargs)
        finally:
            for handle in handles:
                handle.remove()
        return output[0] if isinstance(output, tuple | list) else output

    def shape(self, name: str) -> tuple[int, int]:
        """Outputs and inputs of a matrix."""
        return out_in(self.matrices[name])

    @contextmanager
    def changed(self, name: str, row: int, *, factor: float | None = None) -> Iterator[None]:
        """Inside, one row of a matrix is another; with `factor`, so many times itself, its bias included."""
        layer: Any = self.matrices[name]
        weight = weight_of(layer)
        old, bias = weight[row].clone(), getattr(layer, "bias", None)
        old_bias = None if bias is None else bias.detach()[row].clone()
        noise = torch.randn(old.shape, generator=torch.Generator().manual_seed(row), dtype=old.dtype)
        with torch.no_grad():
            weight[row] = old + 3 * old.norm() / len(old) ** 0.5 * noise.to(old) if factor is None else factor * old
            if factor is not None and bias is not None:
                bias.data[row] = factor * bias.data[row]
            try:
                yield
            finally:
                weight[row] = old
                if bias is not None:
                    bias.data[row] = old_bias

    def reach(self, name: str) -> list[Reach]:
        """What rows of a matrix reach, for some rows of it; those that reach nothing are left out."""
        rows = sorted({round(i * (self.shape(name)[0] - 1) / (ROWS - 1)) for i in range(ROWS)})
        return [reached for row in rows if (reached := self.reach_of(name, row)) is not None]

    def reach_of(self, name: str, row: int) -> Reach | None:
        """What one row reaches first; none where it reaches nothing."""
        with self.changed(name, row):
            self.run()
        for reader in dict.fromkeys(self.order):
            if self.inputs[reader].shape != self.as_it_is[reader].shape:
                continue
            change = (self.inputs[reader] - self.as_it_is[reader]).abs().flatten(0, -2).amax(0)
            if float(change.max()) > SILENT * float(self.as_it_is[reader].abs().max()):
                columns = (change > SILENT * change.max()).nonzero()[:, 0].tolist()
                return Reach(row, reader, tuple(columns))
        return None

    def is_linear(self, name: str, row: int, reader: str, column: int) -> bool:
        """Is what a row writes there proportional to it?"""
        with self.changed(name, row, factor=2.0):
            self.run()
        before, after = (inputs[reader][..., column] for inputs in (self.as_it_is, self.inputs))
        return bool(torch.allclose(after, 2 * before, rtol=1e-6, atol=1e-12))


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple | list):
        return type(value)(_double(each) for each in value)
    return {name: _double(each) for name, each in value.items()} if isinstance(value, dict) else value

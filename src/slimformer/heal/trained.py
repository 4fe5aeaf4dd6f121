"""Which parameters are trained, and what must not change: everything else, and zeros in matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.models import describe
from slimformer.models.norms import final_norm

Parameters = Mapping[str, nn.Parameter]


def trained_parameters(model: PreTrainedModel, kind: str = "all") -> dict[str, nn.Parameter]:
    """Those of all blocks and of the last norm, by name; of `norms` only vectors, i.e. gains and biases.

    Embeddings and heads stay what they are in the dense model: they were not cut, and text shows few of their rows.
    """
    paths = tuple(f"{block.path}." for block in describe(model).blocks)
    last = final_norm(model)
    of_norm = set() if last is None else {id(parameter) for parameter in last.parameters()}
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if (name.startswith(paths) or id(parameter) in of_norm)
        and parameter.numel()
        and (kind != "norms" or parameter.ndim == 1)
    }


@torch.no_grad()
def make_own(model: PreTrainedModel, dense: PreTrainedModel) -> None:
    """Give `model` a copy of every trained parameter it has in common with the dense one, which must not learn."""
    shared = {parameter.data_ptr() for parameter in dense.parameters()}
    for parameter in trained_parameters(model).values():
        if parameter.data_ptr() in shared:
            parameter.data = parameter.data.clone()


@contextmanager
def training_only(model: nn.Module, parameters: Parameters) -> Iterator[None]:
    """Let these parameters want gradients and no others; where a matrix has zeros, none reach them, so they stay."""
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    hooks = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in parameters)
    for parameter in parameters.values():
        zeros = parameter.detach() == 0
        if parameter.ndim > 1 and bool(zeros.any()):
            hooks.append(parameter.register_hook(lambda gradient, zeros=zeros: gradient.masked_fill(zeros, 0.0)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(wanted.get(name, True))
            parameter.grad = None


def has_zeros(model: PreTrainedModel) -> bool:
    """Is any matrix of the blocks partly zero, as `sparsify` leaves it?"""
    return any(p.ndim > 1 and bool((p == 0).any()) for p in trained_parameters(model).values())


def snapshot(parameters: Parameters) -> dict[str, Tensor]:
    """Copies of parameters as they are now."""
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@torch.no_grad()
def put_back(parameters: Parameters, values: Mapping[str, Tensor]) -> None:
    """Let parameters be what they were, to the last bit."""
    for name, parameter in parameters.items():
        parameter.copy_(values[name])

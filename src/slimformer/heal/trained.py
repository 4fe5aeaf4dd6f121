"""Which parameters are trained, and what must not change: everything else, and zeros in matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


PARTS = (1.0, 0.75, 0.5, 0.25)  # of the way


def keep_part(
    parameters: Parameters, before: Mapping[str, Tensor], measure: Callable[[], float], unmoved: float = 1.0
) -> tuple[float, float]:  # fmt: skip
    """Set θ = θ₀ + α (θ₁ − θ₀), from the values before to those now, at the α of the lowest measure; α and measure.

    Training far on one text ruins others first in a straight line; part of the way often keeps both. Goes back from
    the end while that is better, or nothing is good enough yet; α is 0 where none is below the measure `unmoved`.

    Cost: at most four measures. Reference: Wortsman et al., "Robust fine-tuning of zero-shot models" (2022).
    """
    after = snapshot(parameters)
    losses: dict[float, float] = {}
    for part in PARTS:
        _go(parameters, before, after, part)
        losses[part] = measure()
        if losses[part] > min(losses.values()):
            break
    best = min(losses, key=lambda part: losses[part])
    if not losses[best] < unmoved:
        put_back(parameters, before)
        return 0.0, unmoved
    _go(parameters, before, after, best)
    return best, losses[best]


@torch.no_grad()
def _go(parameters: Parameters, before: Mapping[str, Tensor], after: Mapping[str, Tensor], part: float) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(after[name] if part == 1 else torch.lerp(before[name], after[name], part))

"""Projections along the sequence for a trained encoder, its weights frozen: a closed form, and a short training.

Both see unlabelled text only. Every layer learns on its own, from the exact inputs of its attention to its output:

    least-squares    E mean pooling, F by conjugate gradients from Σ PᵀP and so on (`decompose.sequence`)
    learned          E and F by Adam on ‖Y − Ŷ‖² / ‖Y‖², one pass of the dense model a step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.decompose.sequence import least_squares_values
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.nn.long_context import Seen, attention_modules, observing

RATE = 0.2  # of logits that start at 8
RIDGE = 1e-2
SEQUENCES = 64  # whose attention the closed form sees
CG_STEPS = 30


def fit_projections(
    model: PreTrainedModel, kind: str, batches: Sequence[Batch], *, steps: int, progress: Progress = silent
) -> list[float]:
    """Fit the projections of every layer of `model` in place; the relative squared errors along the way, if trained."""
    modules: list[Any] = attention_modules(model, describe(model).family)
    if kind == "least-squares":
        _least_squares(model, modules, batches, progress)
        return []
    return _trained(model, modules, batches, steps, progress)


def _trained(
    model: PreTrainedModel, modules: list[Any], batches: Sequence[Batch], steps: int, progress: Progress
) -> list[float]:
    """Adam at a rate that falls linearly to a tenth. Cost of a step: one forward pass, and a backward one of each
    attention over k keys."""
    parameters = [p for module in modules for p in module.projected.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    course: list[float] = []

    def observer(module: Any) -> Callable[[Seen], None]:
        def see(seen: Seen) -> None:
            with torch.enable_grad():
                loss = _loss(module, seen)
                loss.backward()
            losses.append(float(loss.detach()))

        return see

    for step, batch in enumerate(islice(cycle(batches), steps)):
        losses: list[float] = []
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - 0.9 * step / steps)
        with torch.no_grad(), observing(model, [observer(module) for module in modules]):
            model.base_model(**batch.to(model.device).inputs)
        optimizer.step()
        optimizer.zero_grad()
        course.append(sum(losses) / len(losses))
        progress("train projections", step + 1, steps)
    return course


def _loss(module: Any, seen: Seen) -> Tensor:
    output = module.projected.attend(seen.query, seen.key, seen.value, seen.real, scale=seen.scale)
    counted = seen.real[:, None, :, None]
    left = ((output - seen.exact) * counted).square().sum()
    return left / (seen.exact * counted).square().sum().clamp_min(1e-12)


@torch.no_grad()
def _least_squares(model: PreTrainedModel, modules: list[Any], batches: Sequence[Batch], progress: Progress) -> None:
    """Layer by layer, so that the attention of one layer is in memory at a time; a pass for each."""
    rows = _first_rows(batches, SEQUENCES)
    for i, module in enumerate(modules):
        heard: list[tuple[Tensor, ...]] = []
        observers: list[Callable[[Seen], None]] = [lambda _: None] * len(modules)
        observers[i] = lambda seen, heard=heard, module=module: heard.append(_system(module, seen))  # type: ignore[misc]
        with observing(model, observers):
            for batch in rows:
                model.base_model(**batch.to(model.device).inputs)
        P, V, Y = (torch.cat(parts) for parts in zip(*heard, strict=True))
        F = module.projected.values
        module.projected.values.copy_(least_squares_values(P, V, Y, F.detach(), ridge=RIDGE, steps=CG_STEPS))
        progress("least squares", i + 1, len(modules))


def _system(module: Any, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over the projected keys, values and the exact output; pads as rows of zeros, to the full length."""
    projected, n = module.projected, seen.real.shape[1]
    E, mass = projected.key_rows(seen.real)
    never = torch.finfo(E.dtype).min / 4
    scores = (seen.query * seen.scale) @ (E @ seen.key).mT + mass.log().clamp_min(never)[..., None, :]
    counted = seen.real[:, None, :, None].to(E.dtype)
    rest = (0, 0, 0, projected.length - n)
    parts = (scores.softmax(-1) * counted, seen.value * counted, seen.exact * counted)
    return tuple(torch.nn.functional.pad(part, rest) for part in parts)  # type: ignore[return-value]


def _first_rows(batches: Sequence[Batch], most: int) -> list[Batch]:
    rows, count = [], 0
    for batch in batches:
        if count >= most:
            break
        rows.append(batch)
        count += len(next(iter(batch.inputs.values())))
    return rows

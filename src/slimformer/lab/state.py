"""The state of a training in one safetensors file, replaced in one step: weights, moments of the optimiser, random
numbers, and the history so far as JSON in its head."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from slimformer.checkpoint.atomic import replacing
from slimformer.files.reading import require_regular
from slimformer.files.seals import read_sealed, save_sealed

RANDOM = "random"


@dataclass
class Progress:
    """How far a training has come."""

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    loss_sum: float = 0.0  # of the steps since the last evaluation
    loss_count: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def save_state(
    path: Path, made_of: dict[str, str], progress: Progress, model: nn.Module, optimiser: torch.optim.Optimizer
) -> None:
    """Everything a training needs to go on to the same bits; `made_of`: digests of its settings and data."""
    tensors = {f"model/{name}": tensor.detach() for name, tensor in _tensors(model).items()}
    for name, parameter in model.named_parameters():
        moments = optimiser.state.get(parameter, {})
        tensors |= {f"optimiser/{name}/{key}": value for key, value in moments.items()}
    tensors[RANDOM] = torch.get_rng_state()
    with replacing(path) as file:
        head = {**made_of, "progress": json.dumps(asdict(progress))}
        save_sealed(tensors, file, head)


def read_head(path: Path) -> dict[str, str]:
    """Digests and history of a saved state; nothing where there is none that can be read."""
    try:
        require_regular(path)
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def load_state(
    path: Path, made_of: dict[str, str], model: nn.Module, optimiser: torch.optim.Optimizer
) -> Progress | None:
    """Put a saved state back; None where there is none of these settings and data, or one that cannot be read."""
    try:
        tensors, head = read_sealed(path)
    except (OSError, ValueError):
        return None
    if any(head.get(key) != value for key, value in made_of.items()):
        return None
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            tensor.copy_(tensors[f"model/{name}"])
    for name, parameter in model.named_parameters():
        start = f"optimiser/{name}/"
        moments: dict[str, Any] = {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}
        if moments:
            optimiser.state[parameter] = moments
    torch.set_rng_state(tensors[RANDOM])
    return Progress(**json.loads(head["progress"]))


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers; tied ones are listed once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}

"""How far the outputs of an export are from those of the model it was made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from slimformer.errors import ExportFailed
from slimformer.export.graph import PER_TOKEN, Graph, outputs_of, sample, trial_shapes
from slimformer.messages.words import option

TOLERANCE = 1e-4  # of the largest output (or of 1): what another order of summation may change in single precision
INT8_COSINE = 0.95  # between outputs before and after; random weights give 0.99, and a broken file nothing near it

Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Difference:
    """Largest difference over all shapes, the largest output, and the smallest cosine of outputs."""

    largest: float
    scale: float
    cosine: float
    shapes: tuple[tuple[int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def difference(graph: Graph, run: Run, *, seq_len: int | None = None) -> Difference:
    """Run both on inputs of several shapes, with padding; outputs at padding count for nothing."""
    shapes, worst, scale, cosine = trial_shapes(graph.model, seq_len), 0.0, 1.0, 1.0
    for seed, (batch, length) in enumerate(shapes):
        inputs = sample(graph.model, batch, length, seed)
        expected, actual = outputs_of(graph, inputs), run(inputs)
        for name, tensor in expected.items():
            if name not in actual or actual[name].shape != tensor.shape:
                raise ExportFailed(f"the export gives no {name} of shape {tuple(tensor.shape)}; it was not kept")
            left, right = (_real(name, x, inputs) for x in (tensor, actual[name]))
            if not bool(torch.isfinite(right).all()):
                raise ExportFailed(f"the export gives NaN or infinite {name}; it was not kept")
            worst = max(worst, float((left - right).abs().max()))
            scale = max(scale, float(left.abs().max()))
            cosine = min(cosine, float(torch.cosine_similarity(left.flatten(), right.flatten(), dim=0)))
    return Difference(worst, scale, cosine, tuple(shapes))


def _real(name: str, tensor: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Without positions that are padding, where the output has positions."""
    mask = inputs.get("attention_mask")
    positions = name in PER_TOKEN or (name == "logits" and tensor.ndim == 3)
    return (tensor[mask.bool()] if mask is not None and positions else tensor).double()


def require_close(gap: Difference, tolerance: float = TOLERANCE) -> None:
    """Refuse an export whose outputs differ by more than rounding."""
    if not gap.largest <= tolerance * gap.scale:
        raise ExportFailed(
            f"the export gives other outputs than the model: they differ by {gap.largest:.2g} (their scale is "
            f"{gap.scale:.2g}, allowed is {tolerance:g} of it); it was not kept"
        )


def require_alike(gap: Difference) -> None:
    """Refuse an int8 export whose outputs no longer point where they did."""
    if not gap.cosine >= INT8_COSINE:
        raise ExportFailed(
            f"int8 changes the outputs too much: their cosine with those of the model is {gap.cosine:.3f} (needed is "
            f"{INT8_COSINE}); export without {option('int8', True)}"
        )

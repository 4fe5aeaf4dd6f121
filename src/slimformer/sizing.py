"""How what is left of a model is stored: in fewer bits, or so that all of it fits into so many bytes.

A size can be met by fewer weights or by fewer bits. Each number of bits leaves room for one share of the parameters;
every such pair is made, and the one that does the least harm on the select split is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.errors import BudgetOutOfReach
from slimformer.evaluate.fidelity import document_harms
from slimformer.models import describe
from slimformer.models.architecture import weight_of
from slimformer.plan import Budget
from slimformer.plan.recipe import Recipe
from slimformer.quantization import BITS, grid_of, quantization_facts, require_savable, round_others, rounded_on
from slimformer.quantize.apply import Quantized
from slimformer.quantize.collect import linear_layers
from slimformer.quantize.pack import stored_bytes
from slimformer.workbench import Bench, Made, timed

TRIES = 3  # steps take more than planned where no group fits a width; then a little less is kept


@dataclass(frozen=True)
class Storage:
    """What was asked for: bits (none: as the model is stored), weights to a step, bytes of all weights together."""

    bits: int | None = None
    group: int | None = 32
    size: int | None = None

    @property
    def asked(self) -> bool:
        return self.bits is not None or self.size is not None


@dataclass(frozen=True)
class Stored:
    """A model as it will be stored."""

    made: Made
    bytes: int
    quantized: Quantized | None = None
    facts: dict[str, Any] | None = None
    sizing: dict[str, Any] | None = field(default=None, compare=False)  # what was tried for a size


def require_storage_allowed(
    model: PreTrainedModel, dtype: torch.dtype, recipe: Recipe, storage: Storage, *, alone: bool
) -> None:
    """Refuse, before the work, what cannot be had: `alone` says that nothing else was asked for that excludes it."""
    if not storage.asked:
        return
    if recipe.rewrites or recipe.depth != "none" or recipe.sequence != "none" or not alone:
        raise BudgetOutOfReach(
            "bits and sizes go with budgets of widths, not with recipes that rewrite, drop blocks or group keys, "
            "--max-kl or --head-data; run `slimformer quantize` on the result"
        )
    grid_of(storage.bits or BITS[0], storage.group)
    require_savable(model)
    if storage.size is not None and not list(shares(model, dtype, storage)):
        others, weights = _weights(model, dtype)
        raise BudgetOutOfReach(
            f"{storage.size / 1e6:.1f} MB were asked for, and what is not compressed (embeddings, norms, head) takes "
            f"{others / 1e6:.1f} MB of {(others + weights * _bytes_of(dtype)) / 1e6:.1f} MB; give more"
        )


def shares(model: PreTrainedModel, dtype: torch.dtype, storage: Storage) -> Iterator[tuple[int | None, float]]:
    """For every number of bits the share of the blocks' parameters that fits into the size; those that keep a tenth."""
    others, weights = _weights(model, dtype)
    choices = (None, *BITS) if storage.bits is None else (storage.bits,)
    for bits in choices:
        each = _bytes_of(dtype) if bits is None else (bits + 16 / (storage.group or 256)) / 8
        share = min(1.0, ((storage.size or 0) - others) / (weights * each))
        if share >= 0.1:
            yield bits, share
        if share == 1.0:
            return  # with fewer bits it would fit as well, and be worse


def stored(bench: Bench, budget: Budget, storage: Storage) -> Stored:
    """The model at a budget, in the bits asked for."""
    made = bench.make(budget)
    if storage.bits is None:
        weights = sum(parameter.numel() for parameter in made.model.parameters())
        return Stored(made, weights * _bytes_of(bench.loaded.dtype))
    grid = grid_of(storage.bits, storage.group)
    with timed(bench.seconds, "quantize"):
        found = rounded_on(made.model, grid, bench.data, "gptq", bench.progress)
        round_others(found, bench.loaded.dtype)
    small = Made(found.model, made.plan, made.corrections)
    return Stored(small, stored_bytes(found, bench.loaded.dtype), found, quantization_facts(found, grid, "gptq"))


def best_within(bench: Bench, storage: Storage) -> Stored:
    """Of all ways to fit into the size, the one that does the least harm on the select split."""
    size = storage.size or 0
    best: Stored | None = None
    tried: list[dict[str, Any]] = []
    for bits, share in shares(bench.loaded.model, bench.loaded.dtype, storage):
        found = _fitting(bench, Storage(bits, storage.group, size), share)
        if found is None:
            continue
        harm = fmean(document_harms(bench.loaded.model, found.made.model, bench.data.splits["select"]))
        if all(harm < each["harm"] for each in tried):
            best = found
        tried.append({"bits": bits, "params": found.made.plan.params, "bytes": found.bytes, "harm": harm})
    if best is None:
        raise BudgetOutOfReach(f"no model of {size / 1e6:.1f} MB can be made of this one; give more, or fewer --bits")
    return Stored(best.made, best.bytes, best.quantized, best.facts, {"size": size, "candidates": tried})


def _fitting(bench: Bench, storage: Storage, share: float) -> Stored | None:
    """The largest model of these bits that fits; none where the format cannot go that low."""
    for _ in range(TRIES):
        try:
            found = stored(bench, Budget(share, "params"), storage)
        except BudgetOutOfReach:
            return None
        if found.bytes <= (storage.size or 0):
            return found
        others, _ = _weights(bench.loaded.model, bench.loaded.dtype)
        share *= 0.995 * ((storage.size or 0) - others) / (found.bytes - others)
    return None


def _weights(model: PreTrainedModel, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes of what stays as it is, and the number of weights of linear layers in blocks."""
    architecture = describe(model)
    layers = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    inside = sum(weight_of(model.get_submodule(name)).numel() for name in layers)
    total = sum(parameter.numel() for parameter in model.parameters())
    return (total - inside) * _bytes_of(dtype), inside


def _bytes_of(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype).element_size()

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

from slimformer.checkpoint.pack import stored_bytes, stored_tensors
from slimformer.checkpoint.tensor_file import file_bytes
from slimformer.decompose.rounding import Grid
from slimformer.errors import BudgetOutOfReach
from slimformer.evaluate.fidelity import document_harms
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.architecture import weight_of
from slimformer.plan import Budget
from slimformer.plan.memory import in_words
from slimformer.plan.recipe import Recipe
from slimformer.rewrite.in_turn import linear_layers
from slimformer.rewrite.quantize import Quantized
from slimformer.steps.quantize import BITS, grid_of, quantization_facts, require_savable, round_others, rounded_on
from slimformer.steps.workbench import Bench, Made, timed

TRIES = 3  # steps take more than planned where no group fits a width; then a little less is kept


@dataclass(frozen=True)
class Storage:
    """What was asked for: bits (none: as the model is stored), weights to a step, bytes of the files of weights."""

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


def require_storage_goes_with(recipe: Recipe, storage: Storage, *, alone: bool) -> None:
    """Refuse what cannot be had together: `alone` says that nothing else was asked for that excludes it."""
    if not storage.asked:
        return
    if recipe.rewrites or recipe.depth != "none" or recipe.sequence != "none" or not alone:
        raise BudgetOutOfReach(
            "bits and sizes go with budgets of widths, not with recipes that rewrite, drop blocks or group keys, "
            f"{option('max_kl')} or {option('head_data')}; run `slimformer quantize` on the result"
        )
    grid_of(storage.bits or BITS[0], storage.group)


def require_storage_possible(model: PreTrainedModel, dtype: torch.dtype, storage: Storage) -> None:
    """Refuse, before the work, what this model cannot be stored as."""
    if not storage.asked:
        return
    require_savable(model)
    if storage.size is not None and not list(shares(model, dtype, storage)):
        whole = _on_disk(model, dtype, None)
        others = whole - sum(_weights(model).values()) * dtype.itemsize
        raise BudgetOutOfReach(
            f"{in_words(storage.size)} were asked for, and what is not compressed (embeddings, norms, head) takes "
            f"{in_words(others)} of {in_words(whole)}; give more"
        )


def shares(model: PreTrainedModel, dtype: torch.dtype, storage: Storage) -> Iterator[tuple[int | None, float]]:
    """For every number of bits the share of the blocks' parameters that fits into the size; those that keep a tenth."""
    choices = (None, *BITS) if storage.bits is None else (storage.bits,)
    for bits in choices:
        whole, inside = _split(model, dtype, Storage(bits, storage.group))
        share = min(1.0, 1 - (whole - (storage.size or 0)) / inside)
        if share >= 0.1:
            yield bits, share
        if share == 1.0:
            return  # with fewer bits it would fit as well, and be worse


def stored(bench: Bench, budget: Budget, storage: Storage) -> Stored:
    """The model at a budget, in the bits asked for."""
    made = bench.make(budget)
    if storage.bits is None:
        return Stored(made, _on_disk(made.model, bench.loaded.dtype, None))
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
        raise BudgetOutOfReach(
            f"no model of {in_words(size)} can be made of this one; give more, or fewer {option('bits')}"
        )
    return Stored(best.made, best.bytes, best.quantized, best.facts, {"size": size, "candidates": tried})


def _fitting(bench: Bench, storage: Storage, share: float) -> Stored | None:
    """The largest model of these bits that fits; none where the format cannot go that low."""
    size = storage.size or 0
    whole, inside = _split(bench.loaded.model, bench.loaded.dtype, storage)
    for _ in range(TRIES):
        try:
            found = stored(bench, Budget(share, "params"), storage)
        except BudgetOutOfReach:
            return None
        if found.bytes <= size:
            return found
        share *= 0.995 * (size - whole + inside) / (found.bytes - whole + inside)
    return None


def _split(model: PreTrainedModel, dtype: torch.dtype, storage: Storage) -> tuple[int, float]:
    """Bytes of the file if nothing is cut, and how many of them are weights of linear layers in blocks."""
    each = dtype.itemsize if storage.bits is None else (storage.bits + 16 / (storage.group or 256)) / 8
    grid = None if storage.bits is None else grid_of(storage.bits, storage.group)
    return _on_disk(model, dtype, grid), sum(_weights(model).values()) * each


def _on_disk(model: PreTrainedModel, dtype: torch.dtype, grid: Grid | None) -> int:
    """Bytes of the file, with linear layers in blocks on a grid if there is one."""
    return file_bytes(stored_tensors(model, dtype, {} if grid is None else dict.fromkeys(_weights(model), grid)))


def _weights(model: PreTrainedModel) -> dict[str, int]:
    """Linear layers in blocks, and how many weights each has."""
    architecture = describe(model)
    names = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    return {name: weight_of(model.get_submodule(name)).numel() for name in names}

"""The best model that fits into so many bytes: every number of bits, each with as many weights as then fit.

A size can be met by fewer weights or by fewer bits. Each number of bits leaves room for one share of the parameters;
every such pair is made, and the one that does the least harm on the select split is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
from slimformer.plan.settings import CutSettings
from slimformer.rewrite.in_turn import linear_layers
from slimformer.run import Run
from slimformer.steps.make import make
from slimformer.steps.quantize import BITS, Quantize, grid_of, require_savable

TRIES = 3  # steps take more than planned where no group fits a width; then a little less is kept
LEAST = 0.1  # share of the parameters below which nothing is tried


def require_size_possible(run: Run, size: int, group: int) -> None:
    """Refuse, before the work, a size that what is not compressed takes already."""
    model, dtype = run.dense, run.loaded.dtype
    require_savable(model)
    if not list(_shares(run, size, group)):
        whole = _on_disk(model, dtype, None)
        others = whole - sum(_weights(model).values()) * dtype.itemsize
        raise BudgetOutOfReach(
            f"{in_words(size)} were asked for, and what is not compressed (embeddings, norms, head) takes "
            f"{in_words(others)} of {in_words(whole)}; give more"
        )


def best_within(run: Run, settings: CutSettings, size: int, group: int) -> Run:
    """Of all ways to fit into the size, the one that does the least harm on the select split."""
    best: Run | None = None
    tried: list[dict[str, Any]] = []
    for rounding, share in _shares(run, size, group):
        smaller = _fitting(_storing(run, rounding), settings, size, share, rounding)
        if smaller is None:
            continue
        harm = fmean(document_harms(run.dense, smaller.model, run.splits["select"]))
        if all(harm < each["harm"] for each in tried):
            best = smaller
        bits = rounding.bits if rounding else None
        tried.append({"bits": bits, "params": smaller.decided.params, "bytes": bytes_of(smaller), "harm": harm})
    if best is None:
        raise BudgetOutOfReach(
            f"no model of {in_words(size)} can be made of this one; give more, or fewer {option('bits')}"
        )
    return best.reporting(sizing={"size": size, "candidates": tried})


def _shares(run: Run, size: int, group: int) -> Iterator[tuple[Quantize | None, float]]:
    """For every number of bits the share of the blocks' parameters that fits into the size, if it is not too small."""
    asked = next((step for step in run.after if isinstance(step, Quantize)), None)
    choices = (None, *(Quantize(bits=bits, group=group) for bits in BITS)) if asked is None else (asked,)
    for rounding in choices:
        whole, inside = _split(run.dense, run.loaded.dtype, rounding)
        share = min(1.0, 1 - (whole - size) / inside)
        if share >= LEAST:
            yield rounding, share
        if share == 1.0:
            return  # with fewer bits it would fit as well, and be worse


def _storing(run: Run, rounding: Quantize | None) -> Run:
    """The run with its weights stored so."""
    others = tuple(step for step in run.after if not isinstance(step, Quantize))
    return replace(run, after=(*others, rounding) if rounding else others)


def _fitting(run: Run, settings: CutSettings, size: int, share: float, rounding: Quantize | None) -> Run | None:
    """The largest model of these bits that fits; none where the format cannot go that low."""
    whole, inside = _split(run.dense, run.loaded.dtype, rounding)
    for _ in range(TRIES):
        try:
            smaller = make(run, Budget(share, "params"), settings)
        except BudgetOutOfReach:
            return None
        if (taken := bytes_of(smaller)) <= size:
            return smaller
        share *= 0.995 * (size - whole + inside) / (taken - whole + inside)
    return None


def bytes_of(run: Run) -> int:
    """What the file of weights takes, to the byte."""
    if run.quantized is not None:
        return stored_bytes(run.quantized, run.loaded.dtype)
    return _on_disk(run.model, run.loaded.dtype, None)


def _split(model: PreTrainedModel, dtype: torch.dtype, rounding: Quantize | None) -> tuple[int, float]:
    """Bytes of the file if nothing is cut, and how many of them are weights of linear layers in blocks."""
    each = dtype.itemsize if rounding is None else (rounding.bits + 16 / (rounding.group or 256)) / 8
    grid = None if rounding is None else grid_of(rounding.bits, rounding.group)
    return _on_disk(model, dtype, grid), sum(_weights(model).values()) * each


def _on_disk(model: PreTrainedModel, dtype: torch.dtype, grid: Grid | None) -> int:
    """Bytes of the file, with linear layers in blocks on a grid if there is one."""
    return file_bytes(stored_tensors(model, dtype, {} if grid is None else dict.fromkeys(_weights(model), grid)))


def _weights(model: PreTrainedModel) -> dict[str, int]:
    """Linear layers in blocks, and how many weights each has."""
    architecture = describe(model)
    names = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    return {name: weight_of(model.get_submodule(name)).numel() for name in names}

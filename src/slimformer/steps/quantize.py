"""Fewer bits, or more zeros, for a model as it is: read, round in turn, measure on held-out data, save.

from slimformer.steps.quantize import quantize, sparsify

quantize("demo:smollm2", bits=4).save("smaller")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.documents import UNNAMED, Source
from slimformer.calibrate.gather import Data, gather
from slimformer.checkpoint.pack import require_packable, require_reader, stored_bytes
from slimformer.decompose.rounding import Grid
from slimformer.decompose.sparse import Pattern
from slimformer.errors import AlreadyRounded, BudgetOutOfReach, PlanDoesNotFit
from slimformer.evaluate.assessment import describe_result, is_stored_packed, measure
from slimformer.evaluate.data_notes import thin_data, unnamed_data
from slimformer.evaluate.report import Report
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import read_bytes
from slimformer.messages.arguments import MODEL, Kind, check_arguments
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture, describe
from slimformer.models.architecture import fingerprint
from slimformer.models.load import Loaded, open_for_work
from slimformer.models.opening import OPTIONS, Opening
from slimformer.nn.long_context import keys_are_grouped
from slimformer.plan import Edit, Plan
from slimformer.rewrite.in_turn import linear_layers
from slimformer.rewrite.quantize import Method, Quantized, quantized, sparsified
from slimformer.rewrite.surgery import round_weights
from slimformer.steps.result import Result

BITS = (8, 4)
GROUPS = (32, 64, 128)
MODEL_OR_LOADED = Kind(MODEL.wanted, lambda x: isinstance(x, Loaded) or MODEL.accepts(x))


def grid_of(bits: int, group: int | None, *, symmetric: bool = True) -> Grid:
    """The grid asked for; steps of whole rows where `group` is 0 or none."""
    if bits not in BITS:
        raise BudgetOutOfReach(f"{bits} bits were asked for; weights are stored in {' or '.join(map(str, BITS))}")
    if group and group not in GROUPS:
        raise BudgetOutOfReach(
            f"groups of {group} were asked for; choose from {', '.join(map(str, GROUPS))}, or 0 for whole rows"
        )
    return Grid(bits, group or None, symmetric)


def pattern_of(text: str) -> Pattern:
    """2:4 as two of four, 0.5 as half of everything."""
    keep, colon, of = text.partition(":")
    try:
        if colon:
            found = Pattern(1 - int(keep) / int(of), int(keep), int(of))
            known = 0 < found.keep <= found.of <= 64
        else:
            found = Pattern(float(text))
            known = 0 <= found.zeros < 1
    except (ValueError, ZeroDivisionError):
        known = False
    if known and not found.zeros:
        raise BudgetOutOfReach(f"the pattern {text!r} sets nothing to zero; give 2:4, or the share of zeros, e.g. 0.5")
    if known:
        return found
    raise BudgetOutOfReach(f"the pattern {text!r} is not understood; give 2:4, or the share of zeros, e.g. 0.5")


@check_arguments(model=MODEL_OR_LOADED)
def quantize(
    model: str | Path | PreTrainedModel | Loaded,
    data: Source | Tensor = UNNAMED,
    *,
    bits: int = 4,
    group: int | None = 32,
    method: Method = "gptq",
    symmetric: bool = True,
    timing: bool = True,
    processor: Any = None,
    progress: Progress = silent,
    **how: Any,
) -> Result:
    """Store the linear layers of all blocks in 8 or 4 bits, with a step for every `group` weights of a row.

    "gptq" rounds so that later weights make up for earlier ones, on the fit split of `data`; "nearest" fits nothing.
    What is reported is measured on the report split. `how` says how data are read (seq_len, tokens, samples, columns,
    only_data, seed) and how a model is opened (`models.opening.Opening`). Cost of "gptq": three passes over the fitted
    tokens, and d³ for every width d.
    """
    grid = grid_of(bits, group, symmetric=symmetric)
    opening, reading = _divided(how)
    loaded = open_for_work(model, processor, opening)
    require_savable(loaded.model, symmetric=symmetric)
    found = _gathered(loaded, data, reading)
    rounded = rounded_on(loaded.model, grid, found, method, progress)
    round_others(rounded, loaded.dtype)
    plan = plan_beside(loaded, f"{bits}-bit", found.seq_len)
    report = describe_result(loaded, rounded.model, plan)
    report = replace(
        report, recipe=f"{bits}-bit", small=replace(report.small, bytes=stored_bytes(rounded, loaded.dtype)),
        quantization=quantization_facts(rounded, grid, method), warnings=[*report.warnings, *_rounded_before(loaded)],
    )  # fmt: skip
    report = _measured(report, loaded, rounded.model, found, timing, progress, fitted=method == "gptq")
    return Result(rounded.model, plan, report, loaded, rounded)


@check_arguments(model=MODEL_OR_LOADED)
def sparsify(
    model: str | Path | PreTrainedModel | Loaded,
    data: Source | Tensor = UNNAMED,
    *,
    pattern: str = "2:4",
    method: Any = "sparsegpt",
    timing: bool = True,
    processor: Any = None,
    progress: Progress = silent,
    **how: Any,
) -> Result:
    """Set weights of the linear layers of all blocks to zero, two of four or a share anywhere, and refit the others.

    The checkpoint holds the zeros as zeros: it is no smaller, and no faster on hardware that does not look for them.
    """
    chosen = pattern_of(pattern)
    opening, reading = _divided(how)
    loaded = open_for_work(model, processor, opening)
    if is_stored_packed(loaded):
        raise AlreadyRounded(
            f"{loaded.name}: its weights are in fewer bits already; sparsify first, then quantize: zeros are kept"
        )
    found, blocks = _gathered(loaded, data, reading), describe(loaded.model).n_blocks
    sparse = sparsified(
        loaded.model, chosen, found.splits["fit"], method=method, progress=lambda i: progress("sparsify", i + 1, blocks)
    )
    round_weights(sparse.model, loaded.dtype)
    plan = plan_beside(loaded, f"sparse-{chosen.name}", found.seq_len)
    facts = {
        "pattern": chosen.name, "method": method, "layers": len(sparse.zeros), "zeros": sparse.share,
        "errors": dict(sparse.errors), "grouped_keys": keys_are_grouped(sparse.model),
    }  # fmt: skip
    report = replace(describe_result(loaded, sparse.model, plan), recipe=f"sparse {chosen.name}", quantization=facts)
    report = _measured(report, loaded, sparse.model, found, timing, progress, fitted=method == "sparsegpt")
    return Result(sparse.model, plan, report, loaded)


def _divided(how: dict[str, Any]) -> tuple[Opening, dict[str, Any]]:
    """How to open the model, and how to read the data."""
    opening = {name: value for name, value in how.items() if name in OPTIONS}
    return Opening(**opening), {name: value for name, value in how.items() if name not in OPTIONS}


def require_savable(model: PreTrainedModel, *, symmetric: bool = True) -> None:
    """Refuse, before the work, what could not be saved or read again."""
    architecture = describe(model)
    names = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    require_packable(model, dict.fromkeys(names))
    require_reader(symmetric=symmetric)


def rounded_on(
    model: PreTrainedModel, grid: Grid, data: Data, method: Method, progress: Progress = silent
) -> Quantized:
    """All linear layers on the grid, fitted on the fit split."""
    blocks = describe(model).n_blocks
    return quantized(
        model, grid, data.splits["fit"], method=method, progress=lambda i: progress("quantize", i + 1, blocks)
    )


def round_others(rounded: Quantized, dtype: torch.dtype) -> None:
    """All that is not packed is stored in this precision: measure with it, too."""
    kept = {name: rounded.model.get_submodule(name).weight.detach().clone() for name in rounded.layers}  # type: ignore
    round_weights(rounded.model, dtype)
    with torch.no_grad():
        for name, weight in kept.items():
            rounded.model.get_submodule(name).weight.copy_(weight)  # type: ignore[operator, union-attr]


def quantization_facts(rounded: Quantized, grid: Grid, method: str) -> dict[str, Any]:
    """What a report says: what was asked for, what weights take with their steps, and the error of every layer."""
    codes = sum(layer.Q.numel() for layer in rounded.layers.values())
    bits = sum(layer.bits * layer.Q.numel() for layer in rounded.layers.values())
    return {
        "bits": grid.bits, "group": grid.group, "symmetric": grid.symmetric, "method": method,
        "layers": len(rounded.layers), "bits_per_weight": bits / codes, "errors": dict(rounded.errors),
        "groups": _group_counts(rounded), "grouped_keys": keys_are_grouped(rounded.model),
    }  # fmt: skip


def _rounded_before(loaded: Loaded) -> list[str]:
    """A note where what is rounded are not the weights of the trained model."""
    if not is_stored_packed(loaded):
        return []
    return [
        f"the weights of {loaded.name} were in fewer bits already, and what that lost is not in these figures; "
        "quantize the model it was made from"
    ]


def _group_counts(rounded: Quantized) -> dict[str, int]:
    """How many layers have steps for so many weights."""
    widths = [layer.Q.shape[1] // layer.s.shape[1] for layer in rounded.layers.values()]
    return {str(width): widths.count(width) for width in sorted(set(widths))}


def _gathered(loaded: Loaded, data: Source | Tensor, reading: Mapping[str, Any]) -> Data:
    asked = {name: value for name, value in reading.items() if name != "only_data"}
    broad = not reading.get("only_data", False)
    return gather(data, loaded.model, loaded.processor, describe(loaded.model), broad=broad, **asked)


def _measured(
    report: Report, loaded: Loaded, small: PreTrainedModel, data: Data, timing: bool, progress: Progress, *,
    fitted: bool,
) -> Report:  # fmt: skip
    fits: Sequence[str] = thin_data(describe(loaded.model), data) if fitted else ()
    notes = [*fits, *unnamed_data(data.reading, data.name)]
    report = replace(report, warnings=[*report.warnings, *notes])
    return measure(report, loaded, small, data, data.splits["report"], timing=timing, progress=progress)


def plan_beside(loaded: Loaded, name: str, seq_len: int) -> Plan:
    """The plan a compressed folder came with, which still says what was kept; for a dense model one that keeps all."""
    if loaded.folder is not None and (loaded.folder / "plan.json").is_file():
        require_unchanged(loaded.folder, "plan.json")
        try:
            return Plan.load(loaded.folder / "plan.json")
        except PlanDoesNotFit:
            if b"slimformer_plan" in read_bytes(loaded.folder / "plan.json"):
                raise  # else it is somebody else's file of that name
    ragged = bool(getattr(loaded.model.config, "slimformer", None))
    return Plan(
        recipe=name, budget=1.0, macs=1.0, params=1.0, seq_len=seq_len, format="ragged" if ragged else "plain",
        ridge=0.0, absorb_mean=False, fingerprint=fingerprint(loaded.model), edits=_all(describe(loaded.model)),
    )  # fmt: skip


def _all(architecture: Architecture) -> tuple[Edit, ...]:
    return tuple(
        Edit(site.name, "none", site.units, site.units, site.units // max(1, site.group)) for site in architecture
    )

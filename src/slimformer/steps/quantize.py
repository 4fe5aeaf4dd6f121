"""Step `quantize`: linear layers of all blocks in 8 or 4 bits, and the tables at both ends where that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel

from slimformer.checkpoint.pack import require_packable, require_reader, step_dtype
from slimformer.decompose.rounding import Grid
from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.nn.long_context import keys_are_grouped
from slimformer.rewrite.in_turn import linear_layers
from slimformer.rewrite.quantize import FEW_ROWS, Quantized, quantized, tables_of
from slimformer.rewrite.surgery import round_weights
from slimformer.run import Run
from slimformer.steps.step import Step

BITS = (8, 4)
GROUPS = (32, 64, 128)


class Quantize(Step):
    """Store the linear layers of all blocks in fewer bits, with a step for every `group` weights of a row.

    "gptq" fits on the fit split (three passes over it, and d³ for every width d): later weights make up for what
    earlier ones lost. "nearest" fits nothing. `tables` are embeddings and the head that gives words, always to
    the nearest.
    """

    bits: int = Field(default=4, description="8 or 4")
    group: int = Field(default=32, ge=0, description="weights of a row that share a step: 32, 64, 128; 0: the row")
    method: Literal["gptq", "nearest"] = Field(default="gptq", description="how weights are rounded")
    symmetric: bool = Field(default=True, description="is zero in the middle of the grid?")
    tables: bool = Field(default=False, description="embeddings and the head of words, too?")

    flags: ClassVar[dict[str, str]] = {"bits": "bits", "group": "group", "tables": "tables"}
    place: ClassVar[int] = 5

    @property
    def fits(self) -> bool:
        return self.method != "nearest"

    @property
    def grid(self) -> Grid:
        return grid_of(self.bits, self.group, symmetric=self.symmetric)

    @property
    def one_group(self) -> int | None:
        """How many weights share a step in every layer; none where layers may differ."""
        return self.group if self.tables and self.group else None

    def require_complete(self) -> None:
        """Bits and groups that are stored."""
        assert self.grid

    def require_possible(self, run: Run) -> None:
        """Refuse what could not be saved or read again."""
        require_savable(run.dense, symmetric=self.symmetric)
        if self.tables and not tables_of(run.dense):
            raise UnknownMethod(
                f"{option('tables', True)}: {type(run.dense).__name__} has no table of {FEW_ROWS} rows or more; "
                "leave it out"
            )

    def run(self, run: Run) -> Run:
        """Round what would be stored; what is not packed is stored in the precision of the model."""
        blocks = describe(run.model).n_blocks
        with run.timed("quantize"):
            if run.model is not run.dense:
                round_weights(run.model, run.loaded.dtype)
            rounded = quantized(
                run.model, self.grid, run.splits["fit"], method=self.method, tables=self.tables,
                progress=lambda i: run.progress("quantize", i + 1, blocks),
            )  # fmt: skip
            round_others(rounded, run.loaded.dtype)
        narrow = replace(run, model=rounded.model, quantized=rounded)
        return narrow.reporting(quantization=quantization_facts(rounded, self))


def grid_of(bits: int, group: int | None, *, symmetric: bool = True) -> Grid:
    """The grid asked for; steps of whole rows where `group` is 0 or none."""
    if bits not in BITS:
        raise BudgetOutOfReach(f"{bits} bits were asked for; weights are stored in {' or '.join(map(str, BITS))}")
    if group and group not in GROUPS:
        raise BudgetOutOfReach(
            f"groups of {group} were asked for; choose from {', '.join(map(str, GROUPS))}, or 0 for whole rows"
        )
    return Grid(bits, group or None, symmetric)


def require_savable(model: PreTrainedModel, *, symmetric: bool = True) -> None:
    """Refuse, before the work, what could not be saved or read again."""
    architecture = describe(model)
    names = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    require_packable(model, dict.fromkeys(names))
    require_reader(symmetric=symmetric)


def round_others(rounded: Quantized, dtype: torch.dtype) -> None:
    """All that is not packed is stored in this precision: measure with it, too."""
    weights = {name: rounded.model.get_submodule(name).weight.detach().clone() for name in rounded.layers}  # type: ignore
    round_weights(rounded.model, dtype)
    with torch.no_grad():
        for name, weight in weights.items():
            rounded.model.get_submodule(name).weight.copy_(weight)  # type: ignore[operator, union-attr]


def quantization_facts(rounded: Quantized, how: Quantize) -> dict[str, Any]:
    """What a report says: what was asked for, what weights take with their steps, and the error of every layer."""
    codes = sum(layer.Q.numel() for layer in rounded.layers.values())
    step = 8 * step_dtype(rounded.model, rounded.layers).itemsize
    bits = sum(layer.stored_bits(step) for layer in rounded.layers.values())
    return {
        "bits": how.bits, "group": how.grid.group, "symmetric": how.symmetric, "method": how.method,
        "tables": how.tables,
        "layers": len(rounded.layers), "bits_per_weight": bits / codes, "errors": dict(rounded.errors),
        "groups": _group_counts(rounded), "grouped_keys": keys_are_grouped(rounded.model),
    }  # fmt: skip


def _group_counts(rounded: Quantized) -> dict[str, int]:
    """How many layers have steps for so many weights."""
    widths = [layer.Q.shape[1] // layer.s.shape[1] for layer in rounded.layers.values()]
    return {str(width): widths.count(width) for width in sorted(set(widths))}

"""The report: JSON first. Console table, model card and page are views of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field

from slimformer.checkpoint.lines import json_text
from slimformer.checkpoint.lines import strict as strict
from slimformer.messages.short import Short, count
from slimformer.plan.plan import LONGEST

FORMAT = 1

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Footprint:
    """What a model costs. MACs are per token at the stated sequence length; bytes are those of its weights."""

    block_macs: Count
    outside_macs: Count
    params: Count
    block_params: Count
    bytes: Count
    kv_cache_bytes: Count = 0  # of one sequence of that length, in the precision of the weights


@dataclass(frozen=True, repr=False)
class Report(Short):
    """Before and after, on data that were neither fitted nor used to choose.

    >>> report = slimformer.evaluate("smaller", "llama", "text.txt", timing=False)
    >>> report.small.params < report.dense.params, report.macs_kept <= 0.6
    (True, True)
    """

    model: str
    model_type: str
    load_class: str
    recipe: str
    format: str
    budget: Annotated[float, Field(gt=0, le=1)]
    macs_kept: Annotated[float, Field(ge=0, le=10)]
    seq_len: Annotated[int, Field(ge=1, le=LONGEST)]
    dense: Footprint
    small: Footprint
    budget_by: str = "macs"
    total_macs: float | None = None  # of all MACs, where that was asked for: the budget follows from it
    correction: list[dict[str, Any]] = field(default_factory=list)
    certificate: dict[str, Any] | None = None
    lossless: dict[str, Any] | None = None  # what each rewrite saved, and how far outputs moved
    long_context: dict[str, Any] | None = None  # which layers look at groups of keys, and what that does
    replaced: dict[str, Any] | None = None  # what stands in the place of feed-forward parts, and what that does
    experts: dict[str, Any] | None = None  # which of every block stay, and by which order
    vocabulary: dict[str, Any] | None = None  # tokens that stay, what they cover, and how much longer texts become
    ends: dict[str, Any] | None = None  # the rank of the tables at both ends, and what that does
    quantization: dict[str, Any] | None = None  # bits, groups and method, or zeros and pattern; errors of layers
    healing: dict[str, Any] | None = None  # how the model learned from the dense one, and what that won
    sizing: dict[str, Any] | None = None  # for a budget in bytes: what was tried, and the harm of each
    head: dict[str, Any] | None = None  # of a fresh head: how it was fitted, and the metrics of the old one
    embedding: dict[str, Any] | None = None  # numbers that are left of embeddings, and what they keep
    metrics: list[dict[str, Any]] = field(default_factory=list)
    other_data: list[dict[str, Any]] = field(default_factory=list)
    elsewhere: dict[str, Any] | None = None  # the loss on text like the calibration text, and on other text
    latency: dict[str, Any] | None = None
    samples: dict[str, str] | None = None
    neighbours: list[dict[str, Any]] | None = None
    front: dict[str, Any] | None = None
    sites: list[dict[str, Any]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    tasks: dict[str, Any] = field(default_factory=dict)
    bench: dict[str, Any] | None = None
    opening: dict[str, Any] = field(default_factory=dict)  # device; revision, commit, class, code trusted where given

    def facts(self) -> dict[str, str]:
        """Model, costs and the first metric, before and after."""
        dense, small = self.dense, self.small
        ratio = f"({self.macs_kept:.3f})"
        facts = {
            "": f"{self.model} · {self.recipe} · {self.format}",
            "block MACs / token": f"{count(dense.block_macs)} → {count(small.block_macs)} {ratio}",
            "parameters": f"{count(dense.params)} → {count(small.params)}",
            "weights": f"{dense.bytes / 1e6:.1f} MB → {small.bytes / 1e6:.1f} MB",
        }
        for metric in self.metrics[:1]:
            values = [f"{metric[side]:.4g}" for side in ("dense", "small") if metric[side] is not None]
            facts[metric["name"]] = f"{' → '.join(values)} ({metric['better']} is better)"
        return {**facts, "notes": str(len(self.warnings))} if self.warnings else facts

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which knows no NaN and no infinity: they become null."""
        fields: dict[str, Any] = strict({"slimformer_report": FORMAT, **asdict(self)})
        return fields

    def to_json(self) -> str:
        return json_text(self.to_dict())

    def metric(self, name: str) -> dict[str, Any] | None:
        """The metric of that name, if it was measured."""
        return next((metric for metric in self.metrics if metric["name"] == name), None)

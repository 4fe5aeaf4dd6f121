"""What every way to a smaller model ends in: the model, its plan, its report, and the one way to write them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.checkpoint.atomic import require_apart
from slimformer.checkpoint.lines import json_text
from slimformer.checkpoint.pack import packed, unpacked
from slimformer.checkpoint.save import Belongings, save
from slimformer.errors import PlanDoesNotFit
from slimformer.evaluate.assessment import describe_result, is_stored_packed, measure
from slimformer.evaluate.data_notes import thin_data, unnamed_data
from slimformer.evaluate.report import Report
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import read_bytes
from slimformer.messages.arguments import check_arguments
from slimformer.messages.short import Short
from slimformer.models import Architecture, describe
from slimformer.models.architecture import fingerprint
from slimformer.models.load import Loaded
from slimformer.plan import Edit, Plan
from slimformer.report.card import model_card
from slimformer.report.page import html_page
from slimformer.rewrite.quantize import Quantized
from slimformer.run import Run
from slimformer.steps.size import bytes_of


@dataclass(frozen=True, repr=False)
class Result(Short):
    """A smaller model, what was decided, and what it did; `quantized` where its weights are stored in fewer bits.

    >>> result = slimformer.cut("stats", macs=0.7)
    >>> result.plan.macs <= 0.7, result.report.recipe
    (True, 'balanced')
    """

    model: PreTrainedModel
    plan: Plan
    report: Report
    loaded: Loaded
    quantized: Quantized | None = None
    parts: Mapping[str, bytes] = field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        """What its report says."""
        return self.report.facts()

    @check_arguments
    def save(self, folder: str | Path, *, force: bool = False, verify: bool = True) -> Path:
        """Write a checkpoint that loads like any other; it is reloaded in a fresh process before it is put in place.

        The precision is that of the original, or fewer bits; tokenizer, plan, report, page and card go with it.
        """
        folder, loaded = Path(folder), self.loaded
        require_apart(folder, loaded.folder, loaded.name)
        stored = in_precision(self.model, loaded.dtype)
        texts = texts_of(self.plan, self.report, folder)
        save(
            unpacked(self.quantized, stored) if self.quantized else stored, folder,
            Belongings(loaded.processor, loaded.companions, texts, self.parts), force=force, verify=verify,
            packed=packed(self.quantized, stored) if self.quantized else None,
        )  # fmt: skip
        return folder


def texts_of(plan: Plan, report: Report, folder: Path) -> dict[str, str]:
    """What a folder says of its model: plan, report, the page of the report, and the model card."""
    numbers = report.to_dict()
    return {
        "plan.json": plan.to_json(), "report.json": json_text(numbers),
        "report.html": html_page(numbers, folder=folder.name), "README.md": model_card(report, folder=folder.name),
    }  # fmt: skip


def assess(run: Run, recipe: str, *, fitted: bool, timing: bool) -> tuple[Run, Report]:
    """What the smaller model does on the report split, and how it came about; what is known without data, if none
    were read."""
    own = run.plan is not None
    run = run if own else replace(run, plan=plan_of(run.loaded, recipe, run.seq_len))
    dense, small = run.original or run.loaded, replace(run.loaded, model=run.model)
    report = describe_result(dense, run.model, run.decided)
    if run.data is not None:
        thin = thin_data(describe(run.dense), run.data) if fitted else []
        notes = [*report.warnings, *thin, *unnamed_data(run.data.reading, run.data.name)]
        with run.timed("evaluate"):
            report = measure(
                replace(report, warnings=notes), dense, small, run.data, timing=timing, progress=run.progress
            )
    if not own:  # the plan of a folder is that of an earlier recipe
        report = replace(report, recipe=recipe, warnings=[*report.warnings, *_rounded_before(run)])
    if run.quantized is not None or "sizing" in run.sections:
        report = replace(report, small=replace(report.small, bytes=bytes_of(run)))
    corrections = [asdict(each) for each in run.corrections]
    return run, replace(report, seconds=run.seconds, correction=corrections, **run.sections)


def plan_of(loaded: Loaded, name: str, seq_len: int) -> Plan:
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


def _rounded_before(run: Run) -> list[str]:
    """A note where what is rounded are not the weights of the trained model."""
    if run.quantized is None or not is_stored_packed(run.loaded):
        return []
    return [
        f"the weights of {run.loaded.name} were in fewer bits already, and what that lost is not in these figures; "
        "quantize the model it was made from"
    ]


def in_precision(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model itself where it has this precision, else a copy that does."""
    if model.dtype == dtype:
        return model
    out: Any = copy.deepcopy(model)
    return out.to(dtype)

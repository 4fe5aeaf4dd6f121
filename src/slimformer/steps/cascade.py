"""Dynamic compression: two nested cuts of one model, and a threshold that decides for every input which one answers.

    cascade = make_cascade(run, cut_settings("balanced"), select_batches, budgets=(0.4, 1.0))
    cascade.save("cascade")
    answer = load_cascade("cascade")(**inputs)        # logits, and which rows the large model answered

The small model reads everything; what it is unsure about (entropy of its output at or above the threshold) the large
one reads again. Formulas are in `evaluate/routing.py`, when it pays off in docs/methods/cascade.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.gather import vocabulary
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.atomic import require_apart
from slimformer.checkpoint.cascade import CascadeRecord, Member, read_cascade, save_cascade
from slimformer.checkpoint.save import Belongings
from slimformer.errors import BudgetOutOfReach, PlanDoesNotFit, UnknownArchitecture, WrongArgument
from slimformer.evaluate.answers import classes, logits_of, observe, read_windows, require_answers
from slimformer.evaluate.compare import is_language_model
from slimformer.evaluate.perplexity import evaluating
from slimformer.evaluate.routing import (
    Macs,
    Outcomes,
    Point,
    at_threshold,
    entropy,
    handed_on,
    paired,
    threshold_for_macs,
    threshold_within,
)
from slimformer.messages.arguments import check_arguments, instance
from slimformer.messages.progress import Progress, silent
from slimformer.messages.short import Short
from slimformer.messages.words import option
from slimformer.models.load import Loaded
from slimformer.models.sample_inputs import require_one_stack
from slimformer.plan import Budget, Plan
from slimformer.plan.settings import CutSettings
from slimformer.run import Run
from slimformer.steps.make import make, require_same_model
from slimformer.steps.result import in_precision

TOLERANCE = 0.005  # half a point of accuracy, or half a percent of perplexity


@dataclass(frozen=True, eq=False)
class Routed:
    """Logits of a batch, which rows the large model gave (on the CPU), and how unsure the small one was (nats)."""

    logits: Tensor
    routed: Tensor
    entropy: Tensor


@dataclass(frozen=True, eq=False)
class Scored:
    """For every window: −ln p of its tokens in all, how many were predicted, and as in `Routed`."""

    nats: Tensor
    tokens: Tensor
    routed: Tensor
    entropy: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Cascade(Short):
    """Two models of one task, routed by the entropy of the small one; `threshold` in nats.

    `macs` are the prices of both as fractions of the dense model's block MACs.

    >>> cascade = slimformer.load_cascade("cascade")
    >>> cascade.macs[0] < cascade.macs[1]
    True
    """

    small: PreTrainedModel
    large: PreTrainedModel
    threshold: float
    macs: Macs

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise WrongArgument(f"{option('threshold', self.threshold)} is not a number of nats from 0")
        require_same_task(self.small, self.large)

    def facts(self) -> dict[str, str]:
        """Which models, what they cost and where one hands on to the other."""
        costs = f"{self.macs[0]:.3f} and {self.macs[1]:.3f} of the dense block MACs"
        return {"": f"two {type(self.small).__name__}", "costs": costs, "threshold": f"{self.threshold:.4g} nats"}

    @property
    def scores_text(self) -> bool:
        """Is it for `score` (language models), or to be called with a batch (classifiers)?"""
        return is_language_model(self.small)

    def __call__(self, **inputs: Any) -> Routed:
        """Class scores of a batch. Cost: the small model on all rows, the large one on those handed on."""
        if self.scores_text:
            raise UnknownArchitecture("this is a cascade of language models, which scores text; use its `score`")
        with evaluating(self.small, self.large):
            logits = logits_of(self.small, inputs)
            unsure = entropy(logits)
            routed = handed_on(unsure, self.threshold)
            if routed.any():
                logits[routed] = logits_of(self.large, _rows(inputs, routed)).to(logits)
        # copies, because tensors made in inference mode may not be changed outside it
        return Routed(logits.clone(), routed.cpu().clone(), unsure.cpu().clone())

    def score(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Scored:
        """Nats of every window (row), routed by the mean entropy of its next tokens; padding counts for nothing.

        Cost: the small model on all windows, the large one on those handed on.
        """
        if not self.scores_text:
            raise UnknownArchitecture("this is a cascade of classifiers; call it with a batch")
        real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        batch = Batch({"input_ids": input_ids, "attention_mask": real.long()}, real)
        with evaluating(self.small, self.large):
            first = read_windows(self.small, batch)
            routed = handed_on(first.entropy, self.threshold)
            nats = first.nats.clone()
            if routed.any():
                again = Batch(_rows(batch.inputs, routed), real[routed.to(real.device)])
                nats[routed] = read_windows(self.large, again).nats
        return Scored(nats.clone(), first.tokens.clone(), routed.clone(), first.entropy.clone())

    def mean_macs(self, routed: Tensor) -> float:
        """m_small + m_large · share of inputs handed on, as a fraction of the dense model's block MACs."""
        return self.macs[0] + self.macs[1] * float(routed.double().mean())


@dataclass(frozen=True, repr=False)
class CascadeResult(Short):
    """A cascade, and what it was made from: `outcomes` and `point` are those of the select split."""

    cascade: Cascade
    record: CascadeRecord
    plans: dict[str, Plan | None]
    outcomes: Outcomes
    point: Point
    loaded: Loaded

    def facts(self) -> dict[str, str]:
        """Those of the cascade, and what it does where its threshold was set."""
        on = f"{self.point.macs:.3f} of the dense block MACs, {self.point.routed:.1%} handed on"
        return {**self.cascade.facts(), "": f"{self.loaded.name}, cut twice", "on select": on}

    def measured(self, batches: Sequence[Batch], *, progress: Progress = silent) -> Outcomes:
        """What both models make of other inputs; `report/cascade.py` turns it into numbers. Cost: a pass of both."""
        return paired(*(observe(m, batches, progress=progress) for m in (self.cascade.small, self.cascade.large)))

    @check_arguments
    def save(
        self, folder: str | Path, *, report: dict[str, Any] | None = None, force: bool = False, verify: bool = True
    ) -> Path:
        """Both checkpoints, the threshold and `report`, if given, as one folder, in the precision of the original."""
        require_apart(Path(folder), self.loaded.folder, self.loaded.name)
        models = {}
        for role, model in (("small", self.cascade.small), ("large", self.cascade.large)):
            plan = self.plans.get(role)
            texts = {"plan.json": plan.to_json()} if plan is not None else {}
            belongings = Belongings(self.loaded.processor, self.loaded.companions, texts)
            models[role] = (in_precision(model, self.loaded.dtype), belongings)
        record = self.record.with_threshold(self.cascade.threshold)
        save_cascade(record, models, folder, report=report, force=force, verify=verify)
        return Path(folder)


@check_arguments(
    run=instance("a run with statistics, as calibrated or from_statistics gives it", Run),
    settings=instance("settings of a cut, as cut_settings gives them", CutSettings),
    select_batches=instance("a list of batches", Sequence),
)
def make_cascade(
    run: Run,
    settings: CutSettings,
    select_batches: Sequence[Batch],
    *,
    budgets: tuple[float, float] = (0.4, 1.0),
    tolerance: float = TOLERANCE,
    mean_macs: float | None = None,
) -> CascadeResult:
    """Cut the model twice from one calibration and set the threshold on `select_batches`.

    `budgets` are fractions of block MACs to keep; 1 is the dense model itself. The threshold is the one of least mean
    MACs that loses at most `tolerance` to the large model (share of errors, or of disagreements where there are no
    labels; nats per token for language models); with `mean_macs` it is the lowest that costs no more than that.
    Cost: two cuts with what the run does after them, and one pass of both models over the select split.
    """
    _require_nested(budgets)
    require_answers(run.dense)
    require_same_model(run.dense, run.known)
    cuts = [make(run, Budget(macs), settings) if macs < 1 else run for macs in budgets]
    small, large = (cut.model.eval() for cut in cuts)
    members = [Member(macs, cut.plan.macs if cut.plan else 1.0) for macs, cut in zip(budgets, cuts, strict=True)]
    macs = (members[0].macs, members[1].macs)
    outcomes = paired(*(observe(model, select_batches, progress=run.progress) for model in (small, large)))
    point = (
        threshold_within(outcomes, macs, tolerance=tolerance)
        if mean_macs is None
        else threshold_for_macs(outcomes, macs, mean_macs=mean_macs)
    )
    provenance = run.known.provenance
    record = CascadeRecord(
        threshold=None, seq_len=provenance.seq_len, fingerprint=provenance.fingerprint,
        small=members[0], large=members[1], select=_summary(outcomes, macs, point),
    )  # fmt: skip
    plans = {"small": cuts[0].plan, "large": cuts[1].plan}
    cascade = Cascade(small, large, point.threshold, macs)
    return CascadeResult(cascade, record.with_threshold(point.threshold), plans, outcomes, point, run.loaded)


@check_arguments
def load_cascade(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> Cascade:
    """The cascade in `folder`, ready for inference; `dtype` as for `slimformer.load`.

    >>> slimformer.load_cascade("cascade").threshold >= 0
    True
    """
    small, large, record = read_cascade(folder, dtype=dtype, device=device)
    return Cascade(small, large, record.nats, (record.small.macs, record.large.macs))


def require_same_task(small: PreTrainedModel, large: PreTrainedModel) -> None:
    """Refuse two models whose answers cannot stand for each other."""
    require_answers(small)
    require_one_stack(small.config, "a cascade")
    same_kind = type(small).__name__ == type(large).__name__
    if not same_kind or classes(small) != classes(large) or _inputs(small) != _inputs(large):
        raise PlanDoesNotFit(
            f"{type(small).__name__} and {type(large).__name__} differ in class, labels or vocabulary; a cascade needs "
            "two cuts of one model"
        )


def _inputs(model: PreTrainedModel) -> int:
    return vocabulary(model) if hasattr(model.config, "vocab_size") else 0


def _require_nested(budgets: tuple[float, float]) -> None:
    if len(budgets) != 2 or not 0 < budgets[0] < budgets[1] <= 1:
        raise BudgetOutOfReach(
            f"budgets of {' and '.join(f'{budget:g}' for budget in budgets)} were asked for; a cascade needs two, "
            "the small one first, above 0 and up to 1"
        )


def _summary(outcomes: Outcomes, macs: Macs, point: Point) -> dict[str, Any]:
    """What the select split said, for the record."""
    small, large = (at_threshold(outcomes, macs, threshold).loss for threshold in (math.inf, 0.0))
    alone = {"small_loss": small, "large_loss": large}
    chosen = {"loss": point.loss, "routed": point.routed, "macs": point.macs, "token_macs": point.token_macs}
    return {"measure": outcomes.measure, "inputs": len(outcomes.entropy), **chosen, **alone}


def _rows(inputs: Mapping[str, Any], chosen: Tensor) -> dict[str, Any]:
    """The chosen rows of everything that has a row for each input; what is shared by all rows stays as it is."""
    return {
        name: value[chosen.to(value.device)] if isinstance(value, Tensor) and len(value) == len(chosen) else value
        for name, value in inputs.items()
    }

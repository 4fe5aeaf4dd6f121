"""Step `lossless`: rewrites that change no output, checked on a sample, with what each of them saved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel

from slimformer.calibrate.distributed import lead_only
from slimformer.checkpoint.reload import outputs_of
from slimformer.checkpoint.verify import default_sample, in_float32
from slimformer.errors import NotLossless
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.architecture import fingerprint
from slimformer.nn.replaced import require_uncut
from slimformer.plan import Edit, Plan, require_format
from slimformer.plan.cost import block_cost
from slimformer.rewrite.exact import Scope
from slimformer.rewrite.lossless import offers, rewritten
from slimformer.run import Run
from slimformer.steps.step import Step

RIDGE = 1e-3  # written into the plan; nothing is fitted
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5}  # the most an output may move, as a share of the largest


Rewrite = Literal[
    "value-bias", "key-bias", "silent-heads", "value-ranks", "score-ranks", "duplicate-neurons", "dead-neurons",
    "scales", "interpolation",
]  # fmt: skip


class Lossless(Step):
    """Rewrite the model so that its outputs stay the same. Needs no data and no budget: how small it gets follows
    from the weights.

    Cost: one pivoted QR of every head, one sort of every block's neurons, two forward passes on a short random sample,
    on which outputs that moved by more than rounding are an error (`NotLossless`).
    """

    rewrites: tuple[Rewrite, ...] = Field(
        default=(
            "value-bias", "key-bias", "silent-heads", "value-ranks", "score-ranks", "duplicate-neurons", "dead-neurons",
        ),
        description="which, in this order",
    )  # fmt: skip
    multiple_of: int = Field(default=8, ge=1, description="neurons are kept in multiples of this")

    reads_data: ClassVar[bool] = False
    why_no_budget: ClassVar[str] = "it changes no output"

    def require_possible(self, run: Run) -> None:
        """Refuse a format that is not known, and a model that runs over groups of keys."""
        require_uncut(run.dense)
        require_format(run.format)

    def preview(self, run: Run) -> list[dict[str, Any]]:
        """What each rewrite would save, or why it is not possible."""
        savings = offers(
            run.dense, describe(run.dense), self._scope(run), seq_len=run.seq_len, names=self.rewrites
        )  # fmt: skip
        return [offer.to_json() for offer in savings]

    def _scope(self, run: Run) -> Scope:
        return Scope(format=run.format, dtype=run.loaded.dtype, multiple_of=self.multiple_of)

    def run(self, run: Run) -> Run:
        """A copy with the same outputs and without what does nothing."""
        lead_only()
        model, length = run.dense, run.seq_len
        small, savings = rewritten(
            model, self.rewrites, self._scope(run), seq_len=length,
            progress=lambda done, total: run.progress("rewrite", done, total),
        )  # fmt: skip
        moved, dtype = largest_change(model, small)
        if not moved <= ROUNDING[dtype]:
            raise NotLossless(
                f"the rewrites changed an output by {moved:.1e} of the largest, which is more than rounding; "
                f"compute in another precision with {option('dtype', torch.float64)}"
            )
        plan = _plan(model, small, self.name, length)
        facts = {
            "rewrites": [each.to_json() for each in savings], "largest_change": moved,
            "dtype": str(dtype).removeprefix("torch."), "hint": _hint(plan),
        }  # fmt: skip
        return replace(run, model=small, plan=plan).reporting(lossless=facts)


def _hint(plan: Plan) -> str | None:
    """A few numbers are seldom worth a config of one's own."""
    if plan.format == "plain" or any(edit.keep < edit.of for edit in plan.edits) or plan.macs < 1:
        return None
    return (
        "only biases went, and without them the config is no longer a stock one; "
        f"{option('format', 'plain')} keeps them"
    )


def largest_change(dense: PreTrainedModel, small: PreTrainedModel) -> tuple[float, torch.dtype]:
    """Largest difference of outputs on a seeded random sample, as a share of the largest, and the precision used.

    Half precision rounds sums differently when terms are left out, so there the sample is run in float32.
    """
    sample = default_sample(dense)
    exact = in_float32(dense)
    before, after = outputs_of(exact, sample), outputs_of(in_float32(small), sample)
    shares = [float((before[key] - after[key]).abs().max() / before[key].abs().max()) for key in before]
    moved = max(shares) if all(map(math.isfinite, shares)) else math.nan
    return moved, exact.dtype


def _plan(model: PreTrainedModel, small: PreTrainedModel, name: str, seq_len: int) -> Plan:
    """The sizes the weights led to, in the words of a plan."""
    before, after = describe(model), describe(small)
    dense, cost = block_cost(before, seq_len), block_cost(after, seq_len)
    edits = tuple(
        Edit(new.name, name, new.units, old.units, new.units // max(1, new.group))
        for old, new in zip(before, after, strict=True)
    )
    return Plan(
        recipe=name, budget=cost.macs / dense.macs, macs=cost.macs / dense.macs,
        params=cost.params / dense.params, seq_len=seq_len,
        format="ragged" if getattr(small.config, "slimformer", None) else "plain", ridge=RIDGE, absorb_mean=True,
        fingerprint=fingerprint(model), edits=edits,
    )  # fmt: skip

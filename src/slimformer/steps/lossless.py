"""The recipe that changes no output: rewrite, check that outputs are the same, and report what was saved."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.distributed import lead_only
from slimformer.calibrate.gather import sequence_length
from slimformer.checkpoint.reload import outputs_of
from slimformer.checkpoint.verify import default_sample, in_float32
from slimformer.errors import NotLossless
from slimformer.evaluate.assessment import describe_result
from slimformer.evaluate.report import Report
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import Architecture, describe
from slimformer.models.architecture import fingerprint
from slimformer.models.load import Loaded
from slimformer.plan import Edit, Plan, require_format
from slimformer.plan.cost import block_cost
from slimformer.plan.recipe import Recipe
from slimformer.rewrite.exact import Scope
from slimformer.rewrite.lossless import rewritten

ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5}  # the most an output may move, as a share of the largest


def make_lossless(
    loaded: Loaded, recipe: Recipe, *, format: str = "ragged", seq_len: int | None = None, progress: Progress = silent
) -> tuple[PreTrainedModel, Plan, Report]:
    """A copy with the same outputs and without what does nothing, the sizes it has, and what each rewrite saved.

    No data are read. Cost: one pivoted QR of every head, one sort of every block's neurons, two forward passes on a
    short random sample, on which outputs that moved by more than rounding are an error (`NotLossless`).
    """
    lead_only()
    require_format(format)
    architecture = describe(loaded.model)
    length = sequence_length(loaded.model, architecture, seq_len)
    scope = Scope(format=format, dtype=loaded.dtype, multiple_of=recipe.multiple_of)
    small, savings = rewritten(
        loaded.model, recipe.rewrites, scope, seq_len=length,
        progress=lambda done, total: progress("rewrite", done, total),
    )  # fmt: skip
    moved, dtype = largest_change(loaded.model, small)
    if not moved <= ROUNDING[dtype]:
        raise NotLossless(
            f"the rewrites changed an output by {moved:.1e} of the largest, which is more than rounding; "
            f"compute in another precision with {option('dtype', torch.float64)}"
        )
    plan = _plan(loaded.model, architecture, describe(small), recipe, small, length)
    report = describe_result(loaded, small, plan)
    found = {
        "rewrites": [each.to_json() for each in savings],
        "largest_change": moved,
        "dtype": str(dtype).removeprefix("torch."),
        "hint": _hint(plan),
    }
    return small, plan, replace(report, lossless=found)


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


def _plan(
    model: PreTrainedModel, before: Architecture, after: Architecture, recipe: Recipe, small: PreTrainedModel,
    seq_len: int,
) -> Plan:  # fmt: skip
    """The sizes the weights led to, in the words of a plan."""
    dense, kept = block_cost(before, seq_len), block_cost(after, seq_len)
    edits = tuple(
        Edit(new.name, recipe.name, new.units, old.units, new.units // max(1, new.group))
        for old, new in zip(before, after, strict=True)
    )
    return Plan(
        recipe=recipe.name, budget=kept.macs / dense.macs, macs=kept.macs / dense.macs,
        params=kept.params / dense.params, seq_len=seq_len,
        format="ragged" if getattr(small.config, "slimformer", None) else "plain", ridge=recipe.ridge,
        absorb_mean=recipe.absorb_mean, fingerprint=fingerprint(model), edits=edits,
    )  # fmt: skip

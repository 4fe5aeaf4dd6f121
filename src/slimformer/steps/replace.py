"""Step `replace`: feed-forward parts give way to maps that do not know their neurons. Widths of all others stay.

Every part is fitted on what the dense model sends (the fit split). `worst: 2` asks for the two that are worth least:
each part is replaced alone, and what that does to the outputs is measured on the select split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any, ClassVar

import torch
from pydantic import Field
from transformers import PreTrainedModel

from slimformer.calibrate.distributed import lead_only
from slimformer.calibrate.gather import Data
from slimformer.calibrate.text import Batch
from slimformer.errors import PlanDoesNotFit, UnknownMethod
from slimformer.evaluate.compare import first_tokens
from slimformer.evaluate.fidelity import document_harms, harm_name
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import Architecture, describe
from slimformer.models.architecture import NEURONS, fingerprint
from slimformer.models.norms import require_scale_free
from slimformer.models.walk import forward, rehearse
from slimformer.nn.replaced import put_mlp, require_uncut
from slimformer.nn.stand_ins import StandIn
from slimformer.plan import Edit, Plan
from slimformer.plan.cost import block_cost, full_size, site_cost
from slimformer.rewrite.replace import How, Part, Scale, Way, fitted, left, rows_of, standing_in
from slimformer.rewrite.sizes import state_sizes
from slimformer.rewrite.surgery import round_weights
from slimformer.run import Run
from slimformer.steps.step import Step

BYTES = 1.5e9  # rows of one part are kept of as many tokens as have room here
TOKENS = 4096  # of the select split are looked at
FEATURED = ("sphere", "arc-cosine", "fourier", "harmonics")


@dataclass(frozen=True)
class Found:
    """What stands in for the part of one block, and what it leaves on the select split."""

    module: StandIn
    r2: float
    cosine: float
    harm: float


class Replace(Step):
    """Replace feed-forward parts of some blocks by a linear map, one that is right up to scale, or functions of the
    sphere."""

    blocks: list[int] | None = Field(default=None, description="numbers of the blocks, the first is 0")
    worst: int | None = Field(default=None, ge=1, description="or: so many, those whose parts are worth least")
    by: Way = Field(default="linear", description="what stands in their place")
    scale: Scale = Field(default="cosine", description="by scale-free: how the scales λ are found")
    features: int | None = Field(default=None, ge=1, description="of the sphere; none: half the width of the stream")
    bias: bool = Field(default=True, description="may the map have a constant?")

    place: ClassVar[int] = 0
    why_no_budget: ClassVar[str] = "it replaces the parts that are named"

    def require_complete(self) -> None:
        """Which blocks, one way or the other, and no setting of another way."""
        if (self.blocks is None) == (self.worst is None):
            raise UnknownMethod(
                f"the recipe {self.name!r}: replace needs blocks, e.g. [3, 4], or worst, e.g. 2; give one of them"
            )
        if self.blocks is not None and (not self.blocks or len(set(self.blocks)) < len(self.blocks)):
            raise UnknownMethod(f"replace.blocks {self.blocks} must name blocks, each once")
        if self.features is not None and self.by not in FEATURED:
            raise UnknownMethod(f"replace.features is for by {', '.join(FEATURED)}; by {self.by} has none")
        if self.scale != "cosine" and self.by != "scale-free":
            raise UnknownMethod(f"replace.scale is for by scale-free, and this is by {self.by}")

    def require_possible(self, run: Run) -> None:
        """Refuse blocks that are not there, parts that nothing can stand for, and scales that matter."""
        require_uncut(run.dense)
        if run.format == "plain":
            raise PlanDoesNotFit(
                "feed-forward parts that were replaced cannot be said in a stock config; use "
                f"{option('format', 'ragged')}"
            )
        require_replaceable(run.dense, describe(run.dense), self)

    def run(self, run: Run) -> Run:
        """Fit what was asked for, and put it in."""
        lead_only()
        assert run.data is not None
        with run.timed("replace"):
            small, section = make_replaced(run.dense, run.data, self, run.loaded.dtype, progress=run.progress)
        plan = _plan(run.dense, small, self.name, run.data.seq_len)
        return changed(run, model=small, plan=plan).reporting(replaced=section)


def require_replaceable(model: PreTrainedModel, architecture: Architecture, settings: Replace) -> None:
    """Refuse what cannot be done, before any work."""
    n, kind = architecture.n_blocks, architecture.model_type
    if len(architecture.stacks) > 1:
        raise UnknownMethod(f"{kind} has several stacks of blocks; the step replace knows models of one")
    for i in settings.blocks or ():
        if not 0 <= i < n:
            raise PlanDoesNotFit(f"replace.blocks names block {i}, and the model has blocks 0 … {n - 1}")
    if settings.worst is not None and settings.worst > n:
        raise PlanDoesNotFit(f"replace.worst {settings.worst}: the model has {n} blocks")
    for i in settings.blocks or range(n):
        site = architecture.blocks[i].one(NEURONS)
        if not site.feed_forward.mlp:
            raise UnknownMethod(
                f"nothing can stand for the feed-forward part of a {kind}: its family names no module of it (`mlp`)"
            )
        if settings.by == "scale-free":
            require_scale_free(model, architecture, i)


@torch.no_grad()
def make_replaced(
    model: PreTrainedModel, data: Data, settings: Replace, dtype: torch.dtype, *, progress: Progress = silent
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A copy with the parts replaced, and what the report says. Cost: one walk over some tokens, a fit for every
    block that is looked at, and a pass over the select split for each."""
    model.eval()
    architecture = describe(model)
    how = How(settings.by, settings.scale, settings.features, settings.bias, data.seed)
    looked = list(range(architecture.n_blocks)) if settings.blocks is None else sorted(settings.blocks)
    held = first_tokens(data.splits["select"], TOKENS)
    room = max(1, int(BYTES / (12 * architecture.hidden)))
    walks = [list(rehearse(model, architecture, first_tokens(data.splits["fit"], room)))]
    walks.append(list(rehearse(model, architecture, held)))
    replaced: dict[int, Found] = {}
    for visit in forward(model, architecture):
        if visit.i not in looked:
            for stream in (stream for walk in walks for stream in walk):
                visit.advance(stream)
            continue
        fit, other = (rows_of(visit, walk) for walk in walks)
        part = Part(model, architecture, visit.i, fit, dtype)
        module = fitted(part, how)
        r2, cosine = left(module, other, post_norm=part.post_norm)
        module = module.to(model.device, model.dtype)
        round_weights(module, dtype)
        replaced[visit.i] = Found(module, r2, cosine, math.nan)
        progress("replace", visit.i + 1, architecture.n_blocks)
    small = deepcopy(model)
    for i, each in replaced.items():
        with standing_in(small, describe(small).blocks[i].one(NEURONS), each.module):
            replaced[i] = changed(each, harm=_harm(model, small, held))
    chosen = sorted(sorted(replaced, key=lambda i: replaced[i].harm)[: settings.worst or len(replaced)])
    for i in chosen:
        put_mlp(small, describe(small), i, replaced[i].module)
    state_sizes(small, "ragged")
    section: dict[str, Any] = {
        "by": settings.by, "scale": settings.scale if settings.by == "scale-free" else None, "bias": settings.bias,
        "blocks": [_told(architecture, i, replaced[i], i in chosen) for i in looked],
        "harm_is": harm_name(model, held), "harm": _harm(model, small, held),
        "tokens": sum(batch.tokens for batch in held),
    }  # fmt: skip
    return small, section


def _harm(model: PreTrainedModel, small: PreTrainedModel, batches: Sequence[Batch]) -> float:
    harms = document_harms(model, small, batches)
    return math.fsum(harms) / len(harms)


def _told(architecture: Architecture, i: int, replaced: Found, chosen: bool) -> dict[str, Any]:
    site = architecture.blocks[i].one(NEURONS)
    cost, stand_in_facts = site_cost(site, full_size(site), 0), replaced.module.stands_in
    return {
        "block": i, "replaced": chosen, "r2": replaced.r2, "cosine": replaced.cosine, "harm": replaced.harm,
        "macs": replaced.module.macs, "of_macs": cost.macs,
        "params": sum(parameter.numel() for parameter in replaced.module.parameters()), "of_params": cost.params,
        **{name: stand_in_facts[name] for name in ("kind", "count", "degree") if name in stand_in_facts},
    }  # fmt: skip


def _plan(model: PreTrainedModel, small: PreTrainedModel, recipe: str, seq_len: int) -> Plan:
    """What is kept, in the words of a plan: of a part that was replaced nothing."""
    before, after = describe(model), describe(small)
    dense, kept = block_cost(before, seq_len), block_cost(after, seq_len)
    edits = tuple(
        Edit(old.name, "replace", new.units, old.units, new.units // max(1, new.group))
        for old, new in zip(before, after, strict=True)
    )
    return Plan(
        recipe=recipe, budget=kept.macs / dense.macs, macs=kept.macs / dense.macs, params=kept.params / dense.params,
        seq_len=seq_len, format="ragged", ridge=0.0, absorb_mean=True, fingerprint=fingerprint(model), edits=edits,
    )  # fmt: skip

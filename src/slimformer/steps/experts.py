"""Step `experts`: whole experts go, as many in every block, and the stock config says how many are left."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from slimformer.calibrate.distributed import lead_only
from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.messages.words import option
from slimformer.models import Architecture, describe
from slimformer.models.architecture import Expert
from slimformer.nn.replaced import require_uncut
from slimformer.plan import Plan
from slimformer.rewrite.experts import How, Instead, Order, fewer_experts
from slimformer.rewrite.surgery import round_weights
from slimformer.run import Run
from slimformer.steps.step import Step


class Experts(Step):
    """Keep some experts of every block; tokens of the others go to these, whose readers are corrected for it.

    A token goes to as many experts as before, so MACs stay, but for the router, and parameters go.
    """

    keep: int | None = Field(default=None, ge=1, description="experts of a block to keep")
    share: float = Field(default=0.5, gt=0, le=1, description="the share of them to keep, rounded up, without a number")
    by: Order = Field(default="least-squares", description="which are worth most: least-squares or reap")
    instead: Instead = Field(default="drop", description="drop the others, or merge them into the nearest that stay")
    correct: bool = Field(default=True, description="fit readers of those that stay to what the dense layer writes")

    place: ClassVar[int] = -2
    why_no_budget: ClassVar[str] = "it takes experts away, of which a token goes to as many as before"

    def require_possible(self, run: Run) -> None:
        """Refuse models without experts, and numbers out of reach."""
        require_uncut(run.dense)
        self._count(describe(run.dense))

    def preview(self, run: Run) -> Plan:
        """How many stay is known; which follows from the data."""
        raise UnknownMethod(
            f"the recipe {self.name!r} takes experts away, and which ones follows from the data; use it without "
            f"{option('dry_run', True)}"
        )

    def run(self, run: Run) -> Run:
        """The run with a dense model of fewer experts."""
        lead_only()
        architecture = describe(run.dense)
        how = How(self._count(architecture), self.by, self.instead, self.correct)
        with run.timed("experts"):
            fewer = fewer_experts(
                run.dense, run.splits, how,
                progress=lambda i: run.progress("experts", i + 1, architecture.n_blocks),
            )  # fmt: skip
            round_weights(fewer.model, run.loaded.dtype)
        facts: dict[str, Any] = {
            "by": self.by, "instead": self.instead, "keep": how.keep, "of": expert_of(architecture).of,
            "active": expert_of(architecture).active, "kept": fewer.kept,
        }  # fmt: skip
        left = replace(run.loaded, model=fewer.model)
        now = replace(run, loaded=left, model=left.model, original=run.original or run.loaded)
        return replace(now, corrections=tuple(fewer.corrections)).reporting(experts=facts)

    def _count(self, architecture: Architecture) -> int:
        """Experts to keep in a block."""
        one = expert_of(architecture)
        count = self.keep if self.keep is not None else math.ceil(round(self.share * one.of, 9))
        if not one.active <= count <= one.of:
            raise BudgetOutOfReach(
                f"{architecture.model_type} has {one.of} experts in a block, and a token goes to {one.active}, so "
                f"{count} cannot stay; keep {one.active} to {one.of}"
            )
        return count


def expert_of(architecture: Architecture) -> Expert:
    """How many experts a block has; refused where there are none."""
    found = next((site.expert for site in architecture if site.expert), None)
    if found is None:
        raise UnknownMethod(f"{architecture.model_type} has no experts; leave the step experts out")
    return found

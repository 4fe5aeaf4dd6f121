"""Step `cut`: fewer heads, ranks and neurons, at a budget.

    model ──describe──▶ Sites ──calibrate──▶ Moments ──profile──▶ Curves ──allocate──▶ Plan ──apply──▶ model

The budget is a fraction to keep (MACs, parameters, measured latency; all MACs), or a search over such fractions:
the smallest model whose divergence is certified (`max_kl`), or the best one that fits into so many bytes (`size`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from slimformer.errors import BudgetOutOfReach
from slimformer.messages.words import either, option
from slimformer.models import describe
from slimformer.models.sample_inputs import require_no_experts
from slimformer.nn.replaced import require_uncut
from slimformer.plan import Budget, Plan, check_budget
from slimformer.plan.asked import BUDGETS, MEASURES, require_divergence, require_fraction, require_one
from slimformer.plan.budget import budget_of
from slimformer.plan.settings import CutSettings
from slimformer.run import Run
from slimformer.steps.alternatives import alternatives
from slimformer.steps.calibration import calibrated
from slimformer.steps.certified import require_certifiable, smallest_certified
from slimformer.steps.heal import Heal
from slimformer.steps.make import even_plan, make, priced
from slimformer.steps.size import Room, best_within, require_size_possible
from slimformer.steps.size_tokens import with_fewer_tokens
from slimformer.steps.step import Step
from slimformer.steps.total import share_of_blocks
from slimformer.steps.turns import in_turns, require_turns_possible


class Cut(CutSettings, Step):
    """Fewer heads, ranks and neurons in every block, as one budget allows; the readers of what is left are refitted."""

    macs: float | None = Field(default=None, description="fraction of the block MACs to keep")
    params: float | None = Field(default=None, description="or: fraction of the blocks' parameters to keep")
    latency: float | None = Field(default=None, description="or: fraction of the blocks' measured latency to keep")
    total_macs: float | None = Field(default=None, description="or: fraction of all MACs, those of the head with them")
    max_kl: float | None = Field(default=None, description="or: the smallest model whose mean KL is certified so")
    size: int | None = Field(default=None, description="or: bytes all weights may take; bits are chosen, too")
    group: int = Field(default=64, ge=0, description="with a size: weights of a row that share a step; 0: the row")
    tables: bool | None = Field(default=None, description="with a size: tables in few bits? none: chosen")
    fewer_tokens: bool = Field(default=True, description="with a size: may tokens go, where that loses less?")

    flags: ClassVar[dict[str, str]] = {name: name for name in (*BUDGETS, "group", "tables")}

    @property
    def budget(self) -> Budget:
        """The fraction that was asked for; the whole model where it is searched for."""
        given = {name: getattr(self, name) for name in BUDGETS}
        by = require_one(given)
        if by == "total_macs":
            require_fraction(given[by], by)
        return budget_of(**{by: given[by]}) if by in MEASURES else Budget(1.0)

    @property
    def room(self) -> Room | None:
        """The bytes that were asked for, and how weights may be stored in them."""
        return None if self.size is None else Room(self.size, self.group, self.tables)

    def require_complete(self) -> None:
        """One budget, and a fraction where it is one."""
        assert self.budget
        if self.max_kl is not None:
            require_divergence(self.max_kl)

    def require_possible(self, run: Run) -> None:
        """Refuse a budget that cannot be reached, while nothing has been read."""
        if self.total_macs is not None:  # how many tokens an earlier step leaves is not known yet
            whole = self.model_copy(update={"total_macs": None, "macs": 1.0})
            return (whole if run.before else self._of_blocks(run, self.total_macs)).require_possible(run)
        require_uncut(run.dense)
        if self.budget.by != "latency":
            self._require_affordable(run, self.budget)
        else:
            require_no_experts(run.dense.config, "a budget of latency")
        if self.max_kl is not None or self.size is not None:
            self._require_unhealed(run)
        if self._in_turns(run) is not None:
            require_turns_possible(run, self.budget)
        if self.room is not None and not run.before:
            require_size_possible(run, self.room)

    def _in_turns(self, run: Run) -> Heal | None:
        """The step that heals, where it asks for more than one turn."""
        return next((step for step in run.after if isinstance(step, Heal) and step.rounds > 1), None)

    def _require_unhealed(self, run: Run) -> None:
        """A search makes many models, and a certificate needs text that nobody learned from."""
        if any(isinstance(step, Heal) for step in run.after):
            flag = option("max_kl") if self.max_kl is not None else option("size")
            raise BudgetOutOfReach(
                f"{flag} tries many budgets, and heal takes minutes for each; leave heal out, and run "
                "`slimformer heal` on the result"
            )

    def _of_blocks(self, run: Run, total: float) -> Cut:
        """The same with the budget of the blocks that follows from one over everything."""
        share = share_of_blocks(run, total)
        inside = self.model_copy(update={"total_macs": None, "macs": share})
        try:
            inside._require_affordable(run, inside.budget)
        except BudgetOutOfReach as error:
            raise BudgetOutOfReach(f"{option('total_macs', total)} leaves too little to the blocks: {error}") from None
        return inside

    def _require_affordable(self, run: Run, budget: Budget) -> None:
        check_budget(describe(run.dense), budget, seq_len=run.seq_len, settings=self, format=run.format)

    def preview(self, run: Run) -> Plan:
        """What would be kept if every block lost the same share."""
        if self.total_macs is not None:
            return self._of_blocks(run, self.total_macs).preview(run)
        if self.max_kl is not None or self.size is not None:
            raise BudgetOutOfReach(f"{option('dry_run', True)} shows sizes for a budget; give {either(*MEASURES)}")
        return even_plan(
            run.dense, budget=priced(run, self.budget), settings=self, format=run.format, seq_len=run.length
        )

    def run(self, run: Run) -> Run:
        """Calibrate and make the model; the steps after the cut are carried out with it."""
        if self.total_macs is not None:
            return self._of_blocks(run, self.total_macs).run(run).reporting(total_macs=self.total_macs)
        if (heal := self._in_turns(run)) is not None:
            by = self.budget.by
            return in_turns(run, heal, self.budget, lambda part, left: self.model_copy(update={by: left}).run(part))
        require_certifiable(run, self.max_kl)
        budget = priced(run, self.budget)
        self._require_affordable(run, budget)
        if self.room is not None and run.before:
            require_size_possible(run, self.room)
        run = calibrated(run, self)
        if self.max_kl is not None:
            cut = smallest_certified(run, self, self.max_kl)
        elif self.room is not None:
            cut = best_within(run, self, self.room)
            cut = with_fewer_tokens(run, cut, self, self.room) if self.fewer_tokens else cut
        else:
            cut = make(run, budget, self)
        plan = cut.decided
        chosen = replace(budget, fraction=plan.budget, by=plan.by)  # type: ignore[arg-type]
        return cut.reporting(front=alternatives(cut, chosen, self))

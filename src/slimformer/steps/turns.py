"""Cut and heal in turns: a deep cut as n cuts of the same ratio, each healed before the next is made.

    f₁ = f^(1/n),  f₂ = f^(2/n),  …,  fₙ = f        of what the dense model costs

The dense model teaches every turn, and the turns share what the step `heal` may spend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slimformer.errors import PlanDoesNotFit
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.plan import Budget
from slimformer.plan.cost import block_cost
from slimformer.run import Run
from slimformer.steps.heal import Heal
from slimformer.steps.refine import Refine


def require_turns_possible(run: Run, budget: Budget) -> None:
    """Refuse what would have to be done in every turn, and budgets that say nothing of the turns between."""
    if budget.by == "latency":
        raise PlanDoesNotFit(f"heal.rounds shares out MACs or parameters; give {option('macs')} or {option('params')}")
    if run.before or not all(isinstance(step, (Refine, Heal)) for step in run.after):
        raise PlanDoesNotFit(
            "heal.rounds is for a recipe of cut, refine and heal; leave other steps out, and do them to the result"
        )


def in_turns(run: Run, heal: Heal, budget: Budget, cut: Callable[[Run, float], Run]) -> Run:
    """The run after all turns; `cut` makes of a run one that keeps a fraction of what it starts from.

    The plan is that of the last turn, made for the model before it. Cost: a calibration and a refinement for each turn,
    and the budget of `heal`.
    """
    assert run.folder is not None
    refine = tuple(step for step in run.after if isinstance(step, Refine))
    now, turns = run, list[dict[str, Any]]()
    for turn in range(1, heal.rounds + 1):
        share = budget.fraction ** (turn / heal.rounds) / _left(now, run, budget)
        folder = run.folder / f"turn-{turn}"
        folder.mkdir()
        start = replace(run, loaded=replace(run.loaded, model=now.model), model=now.model, folder=folder, after=refine)
        now = heal.of_one_turn().run(replace(cut(start, min(1.0, share)), loaded=run.loaded))
        done = now.sections["healing"]
        turns.append({"left": _left(now, run, budget), "helped": done["kept"], "won": done["won"]})
    whole = {"budget": budget.fraction, "front": None, "healing": {**now.sections["healing"], "turns": turns}}
    return now.reporting(**whole)


def _left(now: Run, start: Run, budget: Budget) -> float:
    """The fraction of the dense model's cost that is left."""
    costs = [block_cost(describe(model), start.seq_len) for model in (now.model, start.dense)]
    small, all_of_it = (cost.macs if budget.by == "macs" else cost.params for cost in costs)
    return small / all_of_it

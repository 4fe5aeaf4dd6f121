"""What holds for every method that is simulated: nothing changes at full budget, budgets are met from below."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from benched import SIMULATED, assert_same, evidence_of, offered

from calibrated import outputs
from families import tiny

evidence = cache(evidence_of)
everywhere = pytest.mark.parametrize(("method", "name"), offered())


@everywhere
def test_a_full_budget_changes_nothing(method: str, name: str) -> None:
    given = evidence(name)
    small = SIMULATED[method].make(given, 1.0)
    assert (small.macs, small.params) == (1, 1)
    assert_same(given, small.model)


@everywhere
@pytest.mark.parametrize("budget", [0.85, 0.6])
def test_budgets_are_met_from_below_and_the_model_runs(method: str, name: str, budget: float) -> None:
    given = evidence(name)
    small = SIMULATED[method].make(given, budget)
    blocks, hidden = given.architecture.n_blocks, given.architecture.hidden
    step = 1 / blocks if SIMULATED[method].whole_blocks else 2 / hidden  # one direction of a tiny stream is 3 %
    assert budget - step < small.macs <= budget
    batch = given.select[0]
    assert outputs(small.model, batch).isfinite().all()


@everywhere
def test_the_model_given_is_left_as_it_was(method: str, name: str) -> None:
    given = evidence(name)
    before = {key: value.clone() for key, value in given.given.model.state_dict().items()}
    SIMULATED[method].make(given, 0.6)
    after = given.given.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in given.given.model.modules())


def test_post_norm_encoders_are_refused_what_they_cannot_have() -> None:
    for name in ("bert", "distilbert"):
        refused = {method for method, found in SIMULATED.items() if found.refuses(tiny(name))}
        assert refused == {"slicegpt", "replaceme"}


def test_what_is_tuned_is_tuned_on_select() -> None:
    """The least harmful candidate on select wins, whatever the order they come in."""
    given = evidence("llama")
    made = {budget: SIMULATED["modegpt"].make(given, budget) for budget in (0.5, 0.8)}
    for order in ((0.5, 0.8), (0.8, 0.5)):
        assert given.best([lambda b=b: made[b] for b in order]) is min(made.values(), key=lambda m: given.harm(m.model))

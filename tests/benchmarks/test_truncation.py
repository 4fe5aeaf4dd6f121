"""The truncations that are compared: none of them does anything at full rank, and what is optimal is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import benched  # noqa: F401  puts the benchmarks on the path
import pytest
import torch

import truncation
from families import tiny, tiny_batches
from truncation_methods import BOTH, SCORES, VALUES


def subject(model_type: str, batches: int = 6) -> Any:
    """What `truncation` needs of a subject; errors are measured on other data than those fitted."""
    model = tiny(model_type)
    calibration, reports = {"fit": tiny_batches(model, batches)}, {"held out": tiny_batches(model, 1, seed=1)}
    return SimpleNamespace(model=model, seq_len=16, calibration=calibration, reports=reports, name=model_type)


def errors(given: Any, seen: Any, calls: Any, qk: str | None, vo: str | None, share: float) -> Any:
    return truncation.errors(truncation.cut(seen, qk, vo, share).eval(), given, calls)


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "llama", "vit"])
def test_full_rank_changes_nothing_and_less_does(model_type):
    given = subject(model_type)
    seen = truncation.look(given)
    calls = truncation.dense_calls(truncation.with_full_ranks(given), given)
    ways = [(qk, None) for qk in SCORES] + [(None, vo) for vo in VALUES] + list(BOTH.values())
    for qk, vo in ways:
        none, some = (errors(given, seen, calls, qk, vo, share) for share in (1.0, 0.5))
        assert none.output < 1e-4, (qk, vo)
        assert some.output > 1e-4, (qk, vo)
        assert (none.scores < 1e-6 < some.scores) if qk else some.scores < 1e-6


def test_values_in_the_metric_after_attention_lose_least(monkeypatch):
    monkeypatch.setattr(truncation, "ONE_BATCH", 8)
    given = subject("gpt2", batches=1)
    seen = truncation.look(given)
    given.reports = {"fitted": given.calibration["fit"]}  # where it is optimal by construction
    calls = truncation.dense_calls(truncation.with_full_ranks(given), given)
    off = {vo: errors(given, seen, calls, None, vo, 0.5).output for vo in VALUES}
    assert min(off["after"], off["eliminated"]) < min(off["plain"], off["before"])


def test_queries_that_are_padding_see_nothing():
    mask = torch.tensor([[True, True, False]])
    allowed = truncation.may_see(torch.zeros(1, 3, 4), mask, causal=True)[0, 0]
    assert allowed.tolist() == [[True, False, False], [True, True, False], [False, False, False]]

"""A budget over all MACs of a token: the head is paid first, and fewer tokens make it cheaper."""

from typing import Any

import pytest

import slimformer
from families import tiny
from slimformer.compress import preview
from slimformer.errors import BudgetOutOfReach
from slimformer.evaluate.report import Footprint, Report
from tokenizers_by_kind import WORDS, fallback

TEXTS = [" ".join(WORDS.split()[i % 30 :][: 6 + i % 5]) + f" {i}" for i in range(240)]


def _report(**how: Any) -> Report:
    tokenizer = fallback()
    model = tiny("llama", vocab_size=len(tokenizer))
    given = {"tokens": 1000, "only_data": True, "refine": False, "timing": False, **how}
    report: Report = slimformer.compress(model, TEXTS, processor=tokenizer, **given).report
    return report


def _all(cost: Footprint) -> int:
    return cost.block_macs + cost.outside_macs


def test_all_macs_stay_below_what_was_asked_for() -> None:
    report = _report(total_macs=0.7)
    dense, small = report.dense, report.small
    assert 0.6 < _all(small) / _all(dense) <= 0.7
    assert small.outside_macs == dense.outside_macs > 0, "the head stays, so the blocks pay"
    assert report.macs_kept < 0.7 == report.total_macs


def test_fewer_tokens_pay_too() -> None:
    alone, both = _report(total_macs=0.7), _report(total_macs=0.7, vocab=300)
    assert both.small.outside_macs < alone.small.outside_macs and both.dense == alone.dense
    assert both.small.block_macs > alone.small.block_macs
    assert _all(both.small) <= 0.7 * _all(both.dense)


def test_the_whole_model_and_what_costs_nothing_to_leave() -> None:
    model = tiny("llama", vocab_size=349)
    whole, none = (preview(model, total_macs=share)[1] for share in (1.0, 0.999))
    assert whole.macs == 1.0 > none.macs  # type: ignore[union-attr]
    assert _report(total_macs=0.98, vocab=300).macs_kept == 1.0, "fewer tokens were enough"


def test_a_budget_the_head_exceeds_is_refused_before_anything_is_read() -> None:
    model = tiny("llama", vocab_size=4000)
    with pytest.raises(BudgetOutOfReach, match=r"takes .*; give more than 0\.\d+, or fewer tokens with vocab="):
        slimformer.compress(model, "nowhere.txt", total_macs=0.3, timing=False)
    with pytest.raises(BudgetOutOfReach, match=r"leaves too little to the blocks: .* the minimum for this model is"):
        preview(tiny("llama", vocab_size=349), total_macs=0.32)
    with pytest.raises(BudgetOutOfReach, match=r"did you mean 0\.7"):
        slimformer.compress(model, "nowhere.txt", total_macs=70.0, timing=False)

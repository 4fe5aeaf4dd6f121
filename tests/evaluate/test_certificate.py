"""Certificates: promises are kept as often as they say, more harm never helps, the first failure ends the search."""

import json
import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from families import tiny, tiny_batches, tiny_compressed
from slimformer.calibrate.text import Batch
from slimformer.errors import BudgetOutOfReach, NotFinite, TooFewTokens
from slimformer.evaluate.certificate import (
    STAKES,
    TESTS,
    WEIGHTS,
    Certificate,
    certify,
    clipped_losses,
    hoeffding_bentkus_p_value,
    least_documents,
    log_purse,
    require_documents,
    upper_bound,
)
from slimformer.evaluate.fidelity import document_harms, logit_divergence
from slimformer.models.outputs import harm

both_tests = pytest.mark.parametrize("test", TESTS)
losses_strategy = st.lists(st.floats(0, 1), min_size=1, max_size=40)
means = st.floats(0.02, 0.9)


def ready(*harms: Sequence[float]) -> list[tuple[float, Callable[[], Sequence[float]]]]:
    """A front whose harms are known: budgets 0.9, 0.8, …"""
    return [(0.9 - 0.1 * i, lambda values=values: values) for i, values in enumerate(harms)]


# --- p-values -------------------------------------------------------------------------------------------------------


@both_tests
@pytest.mark.parametrize("n", [5, 30, 120])
@pytest.mark.parametrize("mean", [0.05, 0.25, 0.6])
def test_no_level_is_exceeded_by_losses_of_zero_and_one(test: str, n: int, mean: float) -> None:
    """P(p ≤ u) ≤ u, exactly, at the edge of the hypothesis, for every u that can come up."""
    p = np.array([TESTS[test]([1.0] * k + [0.0] * (n - k), mean) for k in range(n + 1)])
    probability = stats.binom.pmf(np.arange(n + 1), n, mean)
    for u in p:
        assert probability[p <= u].sum() <= u * (1 + 1e-9)


@pytest.mark.parametrize("n", [1, 10, 80])
def test_the_purse_is_fair_at_the_edge_and_shrinks_beyond(n: int) -> None:
    values, chances = np.array([0.0, 0.1, 1.0]), np.array([0.5, 0.3, 0.2])  # mean 0.23
    draws = [(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)]
    weight = np.exp(stats.multinomial(n, chances).logpmf(np.array(draws)))

    def expected(mean: float) -> float:
        purses = [math.exp(log_purse(np.repeat(values, counts), mean)) for counts in draws]
        return float(weight @ purses)

    assert expected(0.23) == pytest.approx(1.0)
    assert expected(0.2) < 1


def test_the_purse_is_no_better_without_replacement() -> None:
    """Documents dealt from a finite pool are not independent; the promise for the mean of the pool still holds."""
    pool = np.random.default_rng(0).random(10) ** 3
    for n in (2, 5, 9):
        purses = [math.exp(log_purse(part, float(pool.mean()))) for part in combinations(pool, n)]
        assert np.mean(purses) <= 1 + 1e-9


def test_the_stakes_are_bets_of_one_purse() -> None:
    assert WEIGHTS.sum() == pytest.approx(1) and (WEIGHTS > 0).all()
    assert (STAKES > 0).all() and (STAKES <= 1).all()  # a larger stake could lose more than there is


@given(losses_strategy, means)
@settings(max_examples=60, deadline=None)
def test_hoeffding_bentkus_is_its_formula(losses: list[float], mean: float) -> None:
    n, low = len(losses), min(math.fsum(losses) / len(losses), mean)
    divergence = stats.entropy([low, 1 - low], [mean, 1 - mean])
    most = math.ceil(math.fsum(losses))
    tail = math.fsum(math.comb(n, k) * mean**k * (1 - mean) ** (n - k) for k in range(most + 1))
    theirs = min(1.0, math.exp(-n * divergence), math.e * tail)
    assert hoeffding_bentkus_p_value(losses, mean) == pytest.approx(theirs, rel=1e-7)


@both_tests
@given(losses=losses_strategy, mean=means, data=st.data())
@settings(max_examples=60, deadline=None)
def test_p_values_grow_with_every_loss_and_fall_with_the_mean(
    test: str, losses: list[float], mean: float, data: st.DataObject
) -> None:
    p_value, p = TESTS[test], TESTS[test](losses, mean)
    assert 0 <= p <= 1
    i = data.draw(st.integers(0, len(losses) - 1))
    worse = [*losses[:i], data.draw(st.floats(losses[i], 1)), *losses[i + 1 :]]
    assert p_value(worse, mean) >= p * (1 - 1e-9)
    assert p_value(losses, data.draw(st.floats(mean, 0.95))) <= p * (1 + 1e-9)
    assert p_value(data.draw(st.permutations(losses)), mean) == pytest.approx(p)
    if math.fsum(losses) / len(losses) >= mean:
        assert p > 0.999  # no evidence without a mean below


@both_tests
def test_p_values_shrink_with_documents_and_no_documents_are_no_evidence(test: str) -> None:
    p = [TESTS[test]([0.1] * n, 0.3) for n in (0, 10, 50, 200)]
    assert p[0] == 1 and p == sorted(p, reverse=True) and p[-1] < 1e-4


@both_tests
def test_strange_losses_are_refused(test: str) -> None:
    for losses in ([0.5, 1.1], [-0.1], [math.nan], [[0.1]]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            TESTS[test](losses, 0.5)
    with pytest.raises(ValueError, match="1 does not"):
        TESTS[test]([0.5], 1.0)


# --- bounds ---------------------------------------------------------------------------------------------------------


@both_tests
@pytest.mark.parametrize("losses", [[0.0] * 30, [0.1, 0.3, 0.2] * 20, [0.0] * 50 + [1.0] * 3])
def test_the_upper_bound_is_where_the_test_turns(test: str, losses: list[float]) -> None:
    bound = upper_bound(losses, 0.05, test)
    assert np.mean(losses) < bound < 1
    assert TESTS[test](losses, bound) <= 0.05 < TESTS[test](losses, bound - 1e-9)
    assert upper_bound(losses, 0.01, test) > bound > upper_bound(losses, 0.2, test)


@both_tests
def test_nothing_bounds_losses_that_are_all_one(test: str) -> None:
    assert upper_bound([1.0] * 100, 0.05, test) == 1


@both_tests
@pytest.mark.parametrize(("epsilon", "delta", "clip"), [(0.1, 0.05, None), (0.1, 0.05, 2.0), (0.01, 0.2, 0.5)])
def test_the_least_number_of_documents_is_the_least(
    test: str, epsilon: float, delta: float, clip: float | None
) -> None:
    least = least_documents(epsilon=epsilon, delta=delta, clip=clip, test=test)
    passing = [
        certify(ready([0.0] * n), epsilon=epsilon, delta=delta, clip=clip, test=test).budget is not None
        for n in (least - 1, least, least + 1, 3 * least)
    ]
    assert passing == [False, True, True, True]


def test_the_least_number_of_documents_by_hand() -> None:
    assert least_documents(epsilon=0.1, clip=1.0, test="hoeffding-bentkus") == 29  # 0.9^29 = 0.047
    require_documents(29, epsilon=0.1, clip=1.0, test="hoeffding-bentkus")
    with pytest.raises(TooFewTokens, match=r"there are 28 documents .* needs 29 .* confidence 0\.95; give more data"):
        require_documents(28, epsilon=0.1, clip=1.0, test="hoeffding-bentkus")
    assert least_documents(epsilon=1e-4, clip=1.0) < 40_000  # a bisection, not a walk


# --- the certificate ------------------------------------------------------------------------------------------------


def two_valued(rng: np.random.Generator, mean: float, n: int) -> list[float]:
    """Harms 0.05 and 0.4 whose mean is known: the clip at ε = 0.1 is 0.4."""
    return np.where(rng.random(n) < (mean - 0.05) / 0.35, 0.4, 0.05).tolist()


def gamma(rng: np.random.Generator, mean: float, n: int) -> list[float]:
    """Harms as spread as those of real documents; clipping at four times the mean changes it by less than 10⁻¹²."""
    return rng.gamma(16, mean / 16, n).tolist()


@both_tests
@pytest.mark.parametrize("draw", [two_valued, gamma])
def test_false_promises_are_as_rare_as_promised(test: str, draw: Callable[..., list[float]]) -> None:
    repetitions, delta = 500, 0.1
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(repetitions):
        harms = [draw(rng, mean, 40) for mean in (0.101, 0.101, 0.12)]
        broken += certify(ready(*harms), epsilon=0.1, delta=delta, test=test).budget is not None
    assert broken <= stats.binom.ppf(0.999, repetitions, delta)  # 73 of 500


@pytest.mark.parametrize("draw", [two_valued, gamma])
def test_a_front_that_crosses_the_line_is_rarely_followed_beyond_it(draw: Callable[..., list[float]]) -> None:
    repetitions, delta, means_of_front = 500, 0.1, (0.06, 0.08, 0.101, 0.13)
    rng = np.random.default_rng(1)
    budgets = [
        certify(ready(*(draw(rng, m, 80) for m in means_of_front)), epsilon=0.1, delta=delta).budget
        for _ in range(repetitions)
    ]
    too_small = sum(budget is not None and budget < 0.75 for budget in budgets)
    assert too_small <= stats.binom.ppf(0.999, repetitions, delta)


@both_tests
def test_what_is_far_below_passes(test: str) -> None:
    rng = np.random.default_rng(2)
    passed = [
        certify(ready(gamma(rng, 0.02, 80), gamma(rng, 0.03, 80)), epsilon=0.1, test=test).budget for _ in range(100)
    ]
    assert passed.count(pytest.approx(0.8)) >= 99


def test_betting_sees_that_documents_agree() -> None:
    """Hoeffding–Bentkus knows the mean only; real documents vary by about a fifth of their mean."""
    harms = gamma(np.random.default_rng(3), 0.06, 64)
    assert certify(ready(harms), epsilon=0.1).budget is not None
    assert certify(ready(harms), epsilon=0.1, test="hoeffding-bentkus").budget is None


def test_the_first_failure_ends_the_search() -> None:
    asked: list[float] = []

    def point(budget: float, value: float) -> tuple[float, Callable[[], Sequence[float]]]:
        def harms() -> Sequence[float]:
            asked.append(budget)
            return [value] * 100

        return budget, harms

    found = certify((point(b, v) for b, v in [(0.9, 0.01), (0.8, 0.02), (0.6, 0.2), (0.5, 0.01)]), epsilon=0.1)
    assert asked == [0.9, 0.8, 0.6]  # the model at 0.5 is never made
    assert [point.passed for point in found.points] == [True, True, False]
    assert found.budget == 0.8 and found.upper == found.points[1].upper <= 0.1
    assert found.documents == 100 and [point.mean for point in found.points] == pytest.approx([0.01, 0.02, 0.2])


def test_all_zeros_pass_to_the_end_and_all_failing_return_nothing() -> None:
    nothing_lost = certify(ready([0.0] * 20, [0.0] * 20), epsilon=0.1)
    assert nothing_lost.budget == pytest.approx(0.8) and nothing_lost.points[-1].clipped == 0
    lost = certify(ready([1.0] * 20, [0.0] * 20), epsilon=0.1)
    assert lost.budget is None and lost.upper is None
    assert lost.points == lost.points[:1] and lost.points[0].clipped == 20 and lost.points[0].upper == lost.clip


def test_the_clip_is_where_harm_stops_to_count() -> None:
    assert clipped_losses([0.0, 0.2, 0.4, 7.0, math.inf, -1e-12], 0.4) == [0.0, 0.5, 1.0, 1.0, 1.0, 0.0]
    with pytest.raises(NotFinite, match="not a number"):
        clipped_losses([0.1, math.nan], 0.4)
    harms = [0.05] * 99 + [50.0]
    rare, worse = certify(ready(harms), epsilon=0.1), certify(ready(harms), epsilon=0.1, clip=60.0)
    assert rare.clip == pytest.approx(0.4) and rare.points[0].clipped == 1
    assert rare.points[0].mean == pytest.approx(0.99 * 0.05 + 0.01 * 0.4) and rare.budget is not None
    assert worse.points[0].mean > 0.5 and worse.budget is None


def test_certificates_are_json_and_one_line() -> None:
    passed, failed = (certify(ready([value] * 50), epsilon=0.1) for value in (0.01, 0.3))
    for found in (passed, failed):
        again = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert again == found.to_json() and again["upper"] == found.upper
        assert set(again["points"][0]) == {"budget", "mean", "upper", "p_value", "clipped", "passed"}
    assert passed.statement() == (
        "mean of min(KL, 0.4) ≤ 0.1 with probability ≥ 0.95 over documents of the same kind, if the 50 tested were "
        "drawn independently"
    )
    assert "over stories of a.txt, if the 50" in passed.statement(population="stories of a.txt")
    assert failed.statement().startswith(
        "mean of min(KL, 0.4) ≤ 0.1 could not be shown for any model: the largest has 0.3"
    )
    assert passed.statement("change") == passed.statement().replace("KL", "change")


def test_fronts_and_numbers_that_promise_nothing_are_refused() -> None:
    zeros = lambda: [0.0] * 20  # noqa: E731
    for front in ([], [(0.8, zeros), (0.9, zeros)], [(0.8, zeros), (0.8, zeros)]):
        with pytest.raises(ValueError, match="each smaller than the one before"):
            certify(front, epsilon=0.1)
    with pytest.raises(ValueError, match="choose from betting, hoeffding-bentkus"):
        certify(ready([0.0]), epsilon=0.1, test="t")
    with pytest.raises(TooFewTokens, match=r"got \[0\]"):
        certify(ready([]), epsilon=0.1)
    with pytest.raises(TooFewTokens, match=r"got \[19, 20\]"):
        certify(ready([0.0] * 20, [0.0] * 19), epsilon=0.1)
    for wrong in (
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": 0.1, "delta": 1.0},
        {"epsilon": 0.1, "clip": 0.1},
    ):
        with pytest.raises(BudgetOutOfReach):
            certify(ready([0.0] * 20), **wrong)
        with pytest.raises(BudgetOutOfReach):
            least_documents(**wrong)


# --- harms of documents ---------------------------------------------------------------------------------------------

KINDS = [("llama", "causal"), ("bert", "classify"), ("bert", "answer"), ("bert", "bare"), ("vit", "classify")]


def rows_of(batch: Batch) -> list[Batch]:
    n = len(next(iter(batch.inputs.values())))
    mask = batch.mask
    return [
        Batch({k: v[i : i + 1] for k, v in batch.inputs.items()}, None if mask is None else mask[i : i + 1])
        for i in range(n)
    ]


def pair(model_type: str, head: str, **sizes: int):
    dense = tiny(model_type, head, **sizes)
    return dense, tiny_compressed(dense, 0.7), tiny_batches(dense, 2, seed=7)


@pytest.mark.parametrize(("model_type", "head"), KINDS)
def test_every_row_is_a_document_whose_harm_is_its_own(model_type: str, head: str) -> None:
    dense, small, batches = pair(model_type, head)
    harms = document_harms(dense, small, batches)
    rows = [row for batch in batches for row in rows_of(batch)]
    with torch.no_grad():
        alone = [harm(dense(**row.inputs), small(**row.inputs), row.mask)[0] for row in rows]
    assert harms == pytest.approx(alone, rel=1e-3, abs=1e-6) and min(harms) > 0
    assert document_harms(dense, small, rows) == pytest.approx(harms, rel=1e-3)
    assert document_harms(dense, dense, batches) == pytest.approx([0.0] * len(harms), abs=1e-12)


def test_the_harm_of_a_regression_is_the_change_of_its_number() -> None:
    dense, small, batches = pair("bert", "classify", num_labels=1)
    with torch.no_grad():
        x, y = (model(**batches[0].inputs).logits.double() for model in (dense, small))
    moved = ((x - y) / x).square().flatten().tolist()
    assert document_harms(dense, small, batches[:1]) == pytest.approx(moved)


@pytest.mark.parametrize("head", ["masked", "answer", "bare"])
def test_padding_has_no_harm(head: str) -> None:
    dense, small, (batch, _) = pair("bert", head)
    assert batch.mask is not None and not batch.mask.all()
    filled = {**batch.inputs, "input_ids": batch.inputs["input_ids"].where(batch.mask, torch.tensor(9))}
    expected = document_harms(dense, small, [batch])
    assert document_harms(dense, small, [Batch(filled, batch.mask)]) == pytest.approx(expected)
    mask = batch.mask.clone()
    mask[2] = False
    fewer = document_harms(dense, small, [Batch(batch.inputs, mask)])
    assert fewer == pytest.approx(expected[:2] + expected[3:])


def test_harms_are_the_kl_per_document_and_go_straight_into_a_certificate() -> None:
    dense, small, batches = pair("llama", "causal")
    harms = document_harms(dense, small, batches)
    assert harms == pytest.approx(logit_divergence(dense, small, batches).kl_per_document)
    worst = max(harms)
    found = certify([(0.7, lambda: document_harms(dense, small, batches))], epsilon=2 * worst)
    assert isinstance(found, Certificate) and found.documents == 16
    assert found.points[0].mean == pytest.approx(np.mean(harms))


@pytest.mark.parametrize("broken", ["dense", "small"])
@pytest.mark.parametrize("head", ["classify", "bare"])
def test_harms_of_broken_models_are_named(broken: str, head: str) -> None:
    dense, small, batches = pair("bert", head)
    with torch.no_grad():
        {"dense": dense, "small": small}[broken].get_input_embeddings().weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match="harm of a document is not finite"):
        document_harms(dense, small, batches)


def test_no_batches_have_no_harms() -> None:
    dense, small, _ = pair("llama", "causal")
    assert document_harms(dense, small, []) == []

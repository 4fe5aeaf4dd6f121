"""Routing by entropy: the two extremes are the two models, MACs fall as the threshold rises, ties go together."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from families import tiny, tiny_batches
from slimformer.errors import BudgetOutOfReach, NotFinite
from slimformer.evaluate.perplexity import perplexity
from slimformer.evaluate.routing import (
    Answers,
    Outcomes,
    at_threshold,
    entropy,
    front,
    handed_on,
    paired,
    routed_losses,
    routing_curve,
    threshold_for_macs,
    threshold_within,
    window_scores,
)

MACS = (0.3, 0.9)
FEW = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.6, 0.69])  # so that ties are common
ROW = st.tuples(FEW, st.floats(0, 5), st.floats(0, 5), st.sampled_from([1.0, 2.0, 7.0]), st.integers(1, 9))
outcomes = st.lists(ROW, min_size=1, max_size=12).map(lambda rows: made(*zip(*rows, strict=True)))


def made(h, small, large, weights=None, lengths=None) -> Outcomes:
    ones = (1.0,) * len(h)
    return Outcomes("loss", tuple(h), tuple(small), tuple(large), weights or ones, lengths or ones)


def random_outcomes(n: int = 200, seed: int = 0) -> Outcomes:
    """Errors of two classifiers, the small one wrong more often where it is unsure."""
    draw = np.random.default_rng(seed)
    h = draw.uniform(0, math.log(2), n)
    small, large = draw.uniform(size=n) < 0.4 * h, draw.uniform(size=n) < 0.08
    return made(h.tolist(), small.astype(float).tolist(), large.astype(float).tolist())


# --- entropy ------------------------------------------------------------------------------------------------


def test_entropy_is_that_of_the_textbook() -> None:
    scores = torch.randn(50, 7, dtype=torch.float64)
    expected = scipy.stats.entropy(scores.softmax(-1).numpy(), axis=-1)
    assert np.allclose(entropy(scores).numpy(), expected, rtol=1e-12)
    assert torch.allclose(entropy(scores + 100), entropy(scores))
    assert entropy(torch.zeros(5)).item() == pytest.approx(math.log(5))


def test_certainty_has_no_entropy_and_what_cannot_happen_adds_none() -> None:
    assert entropy(torch.tensor([0.0, 1e4, 0.0])).item() == 0.0
    impossible = torch.tensor([1.0, 2.0, -torch.inf])
    assert entropy(impossible).item() == pytest.approx(entropy(impossible[:2]).item())


def test_half_precision_is_not_summed_in_half_precision() -> None:
    scores = torch.randn(4, 20_000).half()
    assert entropy(scores).dtype == torch.float32
    assert torch.allclose(entropy(scores).double(), entropy(scores.double()), rtol=1e-5)


def test_the_ends_of_the_scale_hand_on_everything_and_nothing() -> None:
    h = torch.tensor([0.0, 0.3, 5.0])
    assert handed_on(h, 0.0).tolist() == [True, True, True]
    assert handed_on(h, math.inf).tolist() == [False, False, False]
    assert handed_on(h, 0.3).tolist() == [False, True, True]


def test_a_small_model_that_gives_nan_decides_nothing() -> None:
    assert handed_on(torch.tensor([math.nan]), math.inf).tolist() == [True]


# --- windows of text ----------------------------------------------------------------------------------------


def test_scores_of_windows_are_those_of_the_perplexity() -> None:
    model, batch = tiny("llama"), tiny_batches(tiny("llama"), 1)[0]
    mask = torch.arange(16) < torch.tensor([16, 9, 2, 12, 16, 3, 5, 7])[:, None]
    padded = replace(batch, inputs={**batch.inputs, "attention_mask": mask.long()}, mask=mask)
    with torch.no_grad():
        found = window_scores(model(**padded.inputs).logits, batch.inputs["input_ids"], mask)
    expected = perplexity(model, [padded])
    assert found.tokens.tolist() == list(expected.tokens_per_window)
    assert (found.nats / found.tokens).tolist() == pytest.approx(expected.nll_per_window, rel=1e-6)


def test_mean_entropy_is_that_of_every_prediction_on_its_own() -> None:
    logits, ids = torch.randn(2, 6, 11), torch.randint(11, (2, 6))
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    found = window_scores(logits, ids, mask)
    assert found.entropy[0].item() == pytest.approx(entropy(logits[0, :5]).double().mean().item())
    assert found.entropy[1].item() == pytest.approx(entropy(logits[1, :3]).double().mean().item())


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_never_counts(side: str) -> None:
    logits, ids = torch.randn(3, 6, 11), torch.randint(11, (3, 6))
    plain = window_scores(logits, ids, torch.ones(3, 6, dtype=torch.bool))
    nonsense = torch.full((3, 4, 11), torch.nan)
    junk, none = torch.randint(11, (3, 4)), torch.zeros(3, 4, dtype=torch.bool)

    def beside(padding: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return torch.cat([padding, real] if side == "left" else [real, padding], 1)

    mask = beside(none, torch.ones(3, 6, dtype=torch.bool))
    padded = window_scores(beside(nonsense, logits), beside(junk, ids), mask)
    assert torch.equal(padded.nats, plain.nats) and torch.equal(padded.entropy, plain.entropy)


def test_a_row_that_predicts_nothing_is_sure_of_it() -> None:
    ids, mask = torch.zeros(1, 4, dtype=torch.long), torch.tensor([[True, False, False, False]])
    found = window_scores(torch.randn(1, 4, 5), ids, mask)
    assert (found.nats.item(), found.entropy.item(), found.tokens.item()) == (0.0, 0.0, 0)


# --- the curve ----------------------------------------------------------------------------------------------


@given(outcomes)
@settings(deadline=None)
def test_the_ends_of_the_curve_are_the_two_models(given_: Outcomes) -> None:
    curve = routing_curve(given_, MACS)
    small, large = (np.average(losses, weights=given_.weights) for losses in (given_.small, given_.large))
    assert curve[0].threshold == math.inf and curve[-1].threshold == 0.0
    assert (curve[0].loss, curve[-1].loss) == pytest.approx((small, large), abs=1e-12)
    assert (curve[0].macs, curve[0].token_macs, curve[0].routed) == (MACS[0], MACS[0], 0.0)
    assert (curve[-1].macs, curve[-1].token_macs, curve[-1].routed) == pytest.approx((sum(MACS), sum(MACS), 1.0))


@given(outcomes)
@settings(deadline=None)
def test_every_point_is_what_its_threshold_gives(given_: Outcomes) -> None:
    for point in routing_curve(given_, MACS):
        again = at_threshold(given_, MACS, point.threshold)
        assert vars(again) == pytest.approx(vars(point), abs=1e-12)


@given(outcomes)
@settings(deadline=None)
def test_macs_fall_as_the_threshold_rises_and_ties_go_together(given_: Outcomes) -> None:
    curve = routing_curve(given_, MACS)
    assert len(curve) == len(set(given_.entropy)) + 1
    assert all(a.threshold > b.threshold and a.macs < b.macs for a, b in pairwise(curve))
    anywhere = [at_threshold(given_, MACS, x).macs for x in np.linspace(0, 0.7, 30)]
    assert anywhere == sorted(anywhere, reverse=True)


@given(outcomes, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_inputs_does_not_matter(given_: Outcomes, random) -> None:
    columns = (given_.entropy, given_.small, given_.large, given_.weights, given_.lengths)
    rows = list(zip(*columns, strict=True))
    random.shuffle(rows)
    shuffled = Outcomes("loss", *map(tuple, zip(*rows, strict=True)))
    for a, b in zip(routing_curve(given_, MACS), routing_curve(shuffled, MACS), strict=True):
        assert a.threshold == b.threshold and vars(a) == pytest.approx(vars(b), abs=1e-12)
    assert threshold_within(given_, MACS, tolerance=0.1).threshold == pytest.approx(
        threshold_within(shuffled, MACS, tolerance=0.1).threshold
    )


def test_neighbouring_numbers_are_told_apart() -> None:
    low = 0.5
    found = routing_curve(made([low, np.nextafter(low, 1)], [1, 1], [0, 0]), MACS)
    assert [point.routed for point in found] == [0.0, 0.5, 1.0]
    assert at_threshold(made([low, np.nextafter(low, 1)], [1, 1], [0, 0]), MACS, found[1].threshold).routed == 0.5


def test_long_inputs_weigh_more_where_tokens_are_counted() -> None:
    found = at_threshold(made([0.1, 0.6], [0, 1], [0, 0], lengths=(10.0, 30.0)), (0.2, 1.0), 0.5)
    assert (found.macs, found.token_macs) == pytest.approx((0.2 + 0.5, 0.2 + 0.75))


def test_losses_by_input_add_up_to_the_point() -> None:
    given_ = random_outcomes()
    assert np.mean(routed_losses(given_, 0.4)) == pytest.approx(at_threshold(given_, MACS, 0.4).loss)


# --- choosing a threshold -----------------------------------------------------------------------------------


@given(outcomes, st.floats(0, 2))
@settings(deadline=None)
def test_nothing_cheaper_is_within_the_tolerance(given_: Outcomes, tolerance: float) -> None:
    chosen = threshold_within(given_, MACS, tolerance=tolerance)
    most = np.average(given_.large, weights=given_.weights) + tolerance
    assert chosen.loss <= most + 1e-8
    thresholds = [math.inf, 0.0, *(h + step for h in given_.entropy for step in (-1e-6, 1e-6))]
    for point in (at_threshold(given_, MACS, max(0.0, x)) for x in thresholds):
        assert point.loss > most - 1e-8 or point.macs >= chosen.macs - 1e-12


@given(outcomes, st.floats(0.3, 1.3))
@settings(deadline=None)
def test_a_budget_is_met_and_nothing_more_would_fit(given_: Outcomes, mean_macs: float) -> None:
    chosen = threshold_for_macs(given_, MACS, mean_macs=mean_macs)
    assert chosen.macs <= mean_macs + 1e-8
    later = [point for point in routing_curve(given_, MACS) if point.threshold < chosen.threshold]
    assert all(point.macs > mean_macs for point in later)


def test_a_loss_of_exactly_the_tolerance_is_within_it() -> None:
    h = [i / 1000 for i in range(1, 801)]
    small, large = [0.0] * 800, [0.0] * 800
    for i in (10, 20, 30, 40):
        small[i] = 1.0  # 4 of 800 are half a point
    assert threshold_within(made(h, small, large), MACS, tolerance=0.005).threshold == math.inf


def test_looser_tolerances_cost_no_more() -> None:
    found = [threshold_within(random_outcomes(), MACS, tolerance=x).macs for x in (0, 0.005, 0.01, 0.03, 1)]
    assert found == sorted(found, reverse=True) and found[0] > found[-1] == MACS[0]


def test_less_than_the_small_model_cannot_be_spent() -> None:
    with pytest.raises(BudgetOutOfReach, match=r"0\.2 were asked for, and the small model alone takes 0\.3"):
        threshold_for_macs(random_outcomes(), MACS, mean_macs=0.2)


def test_the_front_holds_what_nothing_beats() -> None:
    points = routing_curve(random_outcomes(), MACS)
    best = front(points)
    assert all(a.macs < b.macs and a.loss > b.loss for a, b in pairwise(best))
    assert all(any(b.macs <= p.macs and b.loss <= p.loss for b in best) for p in points)


# --- two models ---------------------------------------------------------------------------------------------


def answers(choices: list[int], labels: list[int] | None) -> Answers:
    ones = (1.0,) * len(choices)
    wrong = () if labels is None else tuple(float(a != b) for a, b in zip(choices, labels, strict=True))
    h = tuple(0.01 * (i + 1) for i in range(len(choices)))
    return Answers("disagreement" if labels is None else "error", h, wrong, tuple(choices), ones, ones)


def test_without_labels_disagreement_bounds_what_accuracy_can_lose() -> None:
    draw = np.random.default_rng(0)
    small, large, labels = (draw.integers(3, size=50).tolist() for _ in range(3))
    blind = paired(answers(small, None), answers(large, None))
    seeing = paired(answers(small, labels), answers(large, labels))
    assert set(blind.large) == {0.0}
    for x in (0.0, 0.1, 0.3, math.inf):
        change = at_threshold(seeing, MACS, x).loss - at_threshold(seeing, MACS, 0.0).loss
        assert abs(change) <= at_threshold(blind, MACS, x).loss + 1e-12


def test_answers_to_other_inputs_are_not_paired() -> None:
    with pytest.raises(ValueError, match="not to the same inputs"):
        paired(answers([0, 1], [0, 0]), answers([0, 1, 1], [0, 0, 0]))


def test_what_cannot_be_routed_is_explained() -> None:
    with pytest.raises(NotFinite, match="NaN"):
        made([math.nan], [0], [0])
    with pytest.raises(ValueError, match="one or more inputs"):
        made([], [], [])
    with pytest.raises(ValueError, match="not negative"):
        threshold_within(random_outcomes(), MACS, tolerance=-0.1)

"""STAT's allocation, by hand and by its laws."""

import math
import random

import pytest
from rungs import ladder, spent

from calibrated import recipe, stock
from slimformer.errors import UnknownMethod
from slimformer.plan.stat import _best_first, _take, stat_bert, stat_opt

WAYS = [stat_bert, stat_opt]
ANY = (9.0, 4.0, 1.0, 0.5)  # harm is of no concern to STAT, but for what rounding leaves


def heads(block, errors, macs=4):
    """Heads that leave these errors (not squared) when 0, 1, … of them are kept."""
    return ladder(block, [error**2 for error in errors], kind="attn.heads", macs=macs)


def neurons(block, pivots, scale=1.0):
    tail = [scale * math.hypot(*pivots[k:]) for k in range(len(pivots))]
    return ladder(block, ANY[: len(pivots)], pivots=[scale * r for r in pivots], tail=[*tail, 0.0])


def by_hand():
    """Two blocks of two heads (4 MACs each) and four neurons (1 MAC each): 24 MACs in all.

    w = 1 + √3, 1 + √2. Scores of heads: 8.20, 2.73 and 9.66, 4.83; of neurons: 10.9, 8.20, 5.46, 2.73 and
    12.1, 4.83, 2.41, 1.21.
    """
    return [heads(0, [3, 1]), neurons(0, [4, 3, 2, 1]), heads(1, [4, 2]), neurons(1, [5, 2, 1, 0.5])]


def units(sizes):
    return [size.units for size in sizes.values()]


def kept(sizes):
    return {name.split(".", 1)[1]: size.units for name, size in sizes.items()}


def test_a_small_budget_by_hand():
    """15 MACs are 62 %: from one head up. One head each costs 8 and leaves 7 neurons, so the smallest score goes.
    All heads would cost 16."""
    assert kept(stat_bert(by_hand(), budget=15)) == {
        "0.attn.heads": 1, "0.ffn.hidden": 4, "1.attn.heads": 1, "1.ffn.hidden": 3,
    }  # fmt: skip


def test_a_larger_budget_by_hand():
    """20 MACs: one head each leaves room for all neurons, with cutoff 8.20 against a tail of 0. All heads leave room
    for the four best neurons, with cutoff 0 against twice the mean of ‖(1)‖ and ‖(2, 1, 0.5)‖, 3.3: that is nearer."""
    assert kept(stat_bert(by_hand(), budget=20)) == {
        "0.attn.heads": 2, "0.ffn.hidden": 3, "1.attn.heads": 2, "1.ffn.hidden": 1,
    }  # fmt: skip


def test_early_blocks_count_more():
    """Blocks alike but for their depth, 1 + √(L + 1) at the start and 1 + √2 at the end: the last gives most."""
    rungs = [rung for b in range(3) for rung in (heads(b, [3, 1], macs=1), neurons(b, [4, 3.9, 3.8, 1]))]
    sizes = stat_bert(rungs, budget=6 + 7)
    assert [sizes[f"blocks.{b}.ffn.hidden"].units for b in range(3)] == [3, 3, 1]


def test_without_depth_weights_there_would_be_a_tie_that_they_break():
    """4 (1 + √2) lies between 2.3 (1 + √4) and 4 (1 + √4): exactly these weights, or the order would be another."""
    first, last = 1 + math.sqrt(4), 1 + math.sqrt(2)
    just_below, just_above = 0.999 * 4 * last / first, 1.001 * 4 * last / first
    for r, expected in ((just_below, 1), (just_above, 2)):
        rungs = [heads(b, [3, 1], macs=1) for b in range(3)]
        rungs += [neurons(0, [9, r]), neurons(1, [9, 1]), neurons(2, [9, 4])]
        sizes = stat_bert(rungs, budget=6 + 4)
        assert sizes["blocks.0.ffn.hidden"].units == expected


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_for_decoders_the_size_of_a_block_does_not_count(scale):
    """Every curve is divided by a straight line through the logarithms: with two blocks, by its own first value."""
    rungs = [heads(0, [3, 1]), neurons(0, [4, 3, 2, 1])]
    rungs += [heads(1, [scale * 4, scale * 2]), neurons(1, [5, 2, 1, 0.5], scale)]
    for budget in range(12, 25):
        assert units(stat_opt(rungs, budget=budget)) == units(stat_opt([*rungs[:2], *by_hand()[2:]], budget=budget))


def random_ladders(rng):
    rungs = []
    for block in range(3):
        falling = sorted((rng.expovariate(1) for _ in range(4)), reverse=True)
        rungs.append(heads(block, falling, macs=5))
        rungs.append(neurons(block, sorted((rng.expovariate(1) for _ in range(4)), reverse=True)))
    return rungs


@pytest.mark.parametrize("way", WAYS)
def test_the_budget_is_spent_to_the_last_unit_and_more_of_it_keeps_more(way):
    for seed in range(10):
        rungs = random_ladders(random.Random(seed))
        least, most = sum(rung.cost[0] for rung in rungs), sum(rung.cost[-1] for rung in rungs)
        macs = []
        for budget in range(least, most + 1):
            sizes = way(rungs, budget=budget)
            macs.append(spent(rungs, sizes))
            full = all(sizes[rung.site.name] == rung.sizes[-1] for rung in rungs if rung.site.kind == "ffn.hidden")
            assert budget - macs[-1] < (5 if full else 1)
            assert min(units(sizes)) > 0
        assert macs == sorted(macs)
        assert macs[-1] == most


def test_of_equal_scores_the_smaller_size_comes_first():
    """Beyond the rank all pivots are 0: units must still be counted one by one."""
    steps = _best_first([(score, l, j + 1) for l in range(2) for j, score in enumerate([3.0, 2.0, 0.0, 0.0, 0.0])])
    for n in range(11):
        assert sum(_take(steps, n, 2)[0]) == n


@pytest.mark.parametrize("allocation", ["stat-bert", "stat-opt", "stat"])
def test_without_pivots_there_is_no_stat(allocation):
    how = recipe("stat", selector="elimination", allocation=allocation)
    with pytest.raises(UnknownMethod, match="needs pivots, which elimination has not; use interpolative"):
        stock("opt").plan(0.5, how)


def test_encoders_and_decoders_get_their_own():
    for model_type, name in (("bert", "stat-bert"), ("opt", "stat-opt")):
        own, named = (stock(model_type).plan(0.6, recipe("stat", allocation=a)).edits for a in ("stat", name))
        assert own == named

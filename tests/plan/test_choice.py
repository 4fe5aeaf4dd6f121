"""Heads or ranks: the better way is taken, and never both."""

import itertools
import random

from rungs import harm_of, ladder, spent

from slimformer.plan.allocate import greedy
from slimformer.plan.choice import greedy_ways


def problem(seed: int, blocks: int = 3):
    """Neurons, and attention as heads (one ladder of price 4) or as two ranks (price 2 each, as much together)."""
    rng = random.Random(seed)

    def falling(n):
        return sorted((rng.random() for _ in range(n)), reverse=True)

    fixed = [ladder(b, falling(4), macs=rng.randint(1, 3)) for b in range(blocks)]
    parts = []
    for b in range(blocks):
        heads = ladder(b, falling(3), macs=4, kind="attn.heads")
        ranks = tuple(ladder(b, falling(3), macs=2, kind=kind) for kind in ("attn.qk", "attn.vo"))
        parts.append(((heads,), ranks))
    return fixed, parts


def ladders_of(fixed, ways):
    return [*fixed, *itertools.chain.from_iterable(ways)]


def test_it_is_never_worse_than_one_way_throughout_and_near_the_best():
    for seed in range(12):
        fixed, parts = problem(seed)
        every = ladders_of(fixed, [way for part in parts for way in part])
        step = max(rung.cost[-1] - rung.cost[0] for rung in every)
        least = max(sum(r.cost[0] for r in ladders_of(fixed, [part[n] for part in parts])) for n in (0, 1))
        most = sum(rung.cost[-1] for rung in ladders_of(fixed, [part[0] for part in parts]))
        for budget in range(least, most + 1, 3):
            sizes = greedy_ways(fixed, parts, budget=budget)
            found = harm_of(every, sizes)
            for n in (0, 1):
                rungs = ladders_of(fixed, [part[n] for part in parts])
                assert found <= harm_of(rungs, greedy(rungs, budget=budget)) + 1e-12
            if budget - step >= least:
                tried = [ladders_of(fixed, ways) for ways in itertools.product(*parts)]
                fitting = [rungs for rungs in tried if sum(r.cost[0] for r in rungs) <= budget - step]
                best = min(harm_of(rungs, greedy(rungs, budget=budget - step)) for rungs in fitting)
                assert found <= best + 1e-12


def test_the_budget_holds_and_no_part_is_cut_in_two_ways():
    for seed in range(6):
        fixed, parts = problem(seed)
        for budget in (24, 30, 36):
            sizes = greedy_ways(fixed, parts, budget=budget)
            cut = [[any(sizes[r.site.name] != r.sizes[-1] for r in way) for way in part] for part in parts]
            assert all(sum(ways) <= 1 for ways in cut)
            taken = [part[ways.index(True)] if any(ways) else part[0] for part, ways in zip(parts, cut, strict=True)]
            assert spent(ladders_of(fixed, taken), sizes) <= budget


def test_everything_is_kept_when_the_budget_allows():
    fixed, parts = problem(0)
    every = ladders_of(fixed, [way for part in parts for way in part])
    sizes = greedy_ways(fixed, parts, budget=10_000)
    assert all(sizes[rung.site.name] == rung.sizes[-1] for rung in every)
